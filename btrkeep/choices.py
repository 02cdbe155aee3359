"""Words of which a user chooses one, if several programs offer the same choice; the default is the first. Imports nothing, so that
help and the configuration need neither NumPy nor another program.
"""

BALANCE_POLICIES = {
    "benefit": "most score removed per written byte first",
    "score": "highest score first, however much data must be moved",
    "usage": "least used first, however fragmented its free space is",
}
"""The policies of a balance, with their lines in the help; balancer.choose has the order of each."""
DEFAULT_POLICY = next(iter(BALANCE_POLICIES))
MAX_PRESSURE = 0.4
"""The share of time that programs may wait for the disks before a balance waits."""
ALLOCATORS = ("ssd", "nossd", "ssd_spread")
IN_PLACE = ("always", "large", "never")
SNAPSHOTS = ("off", "auto", "required")
ENGINES = ("rsync", "send")
HISTORY_PERIODS = ("daily", "weekly", "monthly", "yearly")
"""The rules of `keep_on_host`; btrkeep-source has the same."""
CURVES = ("hilbert", "linear", "snake")
SORTS = ("physical", "virtual")
COLOURS = {
    "usage": "how full",
    "score": "how fragmented the free space is",
    "age": "when the data there was written",
    "profile": "RAID profile",
    "type": "data, metadata, system",
}
"""The colourings of a heatmap; heatmap.colourings paints them."""
PICTURE_FORMATS = ("png", "webp")
ALARM_EVENTS = {
    "failure": "Failed",
    "suspect": "Suspect backups",
    "silent": "Without a complete backup for too long",
    "room": "Room",
    "devices": "Devices",
}
"""The events that [notify] on sends at once, in this order, with the title in the message."""
SERVICE_VERBS = {
    "browse": 600,
    "search": 60,
    "versions": 120,
    "compare": 120,
    "download": 300,
    "hold": 300,
    "release": 300,
    "accept": 300,
    "silence": 300,
    "run": 600,
    "bulk": 60,
    "restore": 60,
    "preview": 60,
    "reach": 60,
    "job": 1200,
    "jobs": 600,
    "stop": 60,
    "doctor": 60,
    "plan": 60,
    "extents": 300,
    "retention": 300,
    "hello": 1200,
    "propose": 30,
    "proposals": 300,
    "proposal": 300,
    "reject": 60,
    "apply": 30,
}
"""The verbs of the root service, with the number of requests of one user a minute, unless [serve] `rates` has another one;
backupd.serve.verbs has their arguments.
"""
OVERWRITE = ("never", "older", "all")
