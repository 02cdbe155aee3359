"""Words of which a user chooses one, where several programs offer the same choice; the default is the first.

Imports nothing, so that help and the configuration need neither NumPy nor another program.
"""

BALANCE_POLICIES = {
    "benefit": "the most score removed for what is written comes first",
    "score": "the highest score comes first, however much moves for it",
    "usage": "the least used comes first, however its free space lies",
}
"""What is balanced first, with its line in the help; balancer.choose has the order of each."""
DEFAULT_POLICY = next(iter(BALANCE_POLICIES))
MAX_PRESSURE = 0.4
"""The share of time that programs may wait for the disks before a balance does."""
ALLOCATORS = ("ssd", "nossd", "ssd_spread")
IN_PLACE = ("always", "large", "never")
CURVES = ("hilbert", "linear", "snake")
SORTS = ("physical", "virtual")
COLOURS = {
    "usage": "how full",
    "score": "how fragmented the free space is",
    "age": "when what lies there was written",
    "profile": "RAID profile",
    "type": "data, metadata, system",
}
"""What the colours of a heatmap show; heatmap.colourings paints them."""
PICTURE_FORMATS = ("png", "webp")
