/* Reads the items that a score needs, and does nothing with them: how fast the kernel delivers.
 *
 *     scan_loop MOUNTPOINT REPEATS
 *
 * prints a line for each repeat: CPU seconds of all chunks and the free space tree, CPU seconds of the block groups (one search
 * for each data chunk, or the block group tree at once where there is one), the wall clock's seconds of both; then how many
 * chunks, free space items and block groups there were. It walks from header to header, which is how the last key is found, from
 * which the next search goes on, and touches no payload but that of chunks (their type).
 */
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#define BUFFER (1 << 20)
#define BLOCK_GROUP_TREE 11 /* older headers do not know it */

static struct {
	struct btrfs_ioctl_search_args_v2 args;
	char room[BUFFER];
} search;

static uint64_t (*data_chunks)[2];
static size_t n_chunks, n_data, n_free, n_groups;

static double seconds(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void note(const struct btrfs_ioctl_search_header *header, const char *payload)
{
	if (header->type == BTRFS_CHUNK_ITEM_KEY) {
		const struct btrfs_chunk *chunk = (const void *)payload;
		n_chunks++;
		if (!(chunk->type & BTRFS_BLOCK_GROUP_DATA))
			return;
		if (!(n_data & (n_data - 1)))
			data_chunks = realloc(data_chunks, (n_data ? n_data * 2 : 1) * sizeof *data_chunks);
		if (!data_chunks)
			exit(1);
		data_chunks[n_data][0] = header->offset;
		data_chunks[n_data++][1] = chunk->length;
	} else if (header->type == BTRFS_BLOCK_GROUP_ITEM_KEY) {
		n_groups++;
	} else {
		n_free++;
	}
}

/* Reads all items of a tree from one compound key to another; the number, or -1. */
static long read_items(int fd, uint64_t tree, uint64_t objectid, uint32_t type, uint64_t offset, uint64_t last_objectid,
		       uint32_t last_type, uint64_t last_offset)
{
	struct btrfs_ioctl_search_key *key = &search.args.key;
	long all = 0;

	*key = (struct btrfs_ioctl_search_key){
		.tree_id = tree, .min_objectid = objectid, .min_type = type, .min_offset = offset, .max_objectid = last_objectid,
		.max_type = last_type, .max_offset = last_offset, .max_transid = UINT64_MAX,
	};
	for (;;) {
		struct btrfs_ioctl_search_header *header = NULL;
		char *at = (char *)search.args.buf;

		key->nr_items = UINT32_MAX;
		search.args.buf_size = BUFFER;
		if (ioctl(fd, BTRFS_IOC_TREE_SEARCH_V2, &search.args))
			return -1;
		if (!key->nr_items)
			return all;
		all += key->nr_items;
		for (uint32_t i = 0; i < key->nr_items; i++) {
			header = (void *)at;
			note(header, at + sizeof *header);
			at += sizeof *header + header->len;
		}
		key->min_objectid = header->objectid;
		key->min_type = header->type;
		key->min_offset = header->offset + 1;
		if (key->min_offset == 0 && ++key->min_type == 256) {
			key->min_type = 0;
			key->min_objectid++;
		}
		if (header->objectid == last_objectid && header->type == last_type && header->offset == last_offset)
			return all;
	}
}

static void read_block_groups(int fd)
{
	if (read_items(fd, BLOCK_GROUP_TREE, 0, 0, 0, UINT64_MAX, 255, UINT64_MAX) >= 0)
		return;
	for (size_t i = 0; i < n_data; i++) {
		uint64_t vaddr = data_chunks[i][0], length = data_chunks[i][1];

		read_items(fd, BTRFS_EXTENT_TREE_OBJECTID, vaddr, BTRFS_BLOCK_GROUP_ITEM_KEY, length, vaddr,
			   BTRFS_BLOCK_GROUP_ITEM_KEY, length);
	}
}

int main(int argc, char **argv)
{
	int fd = argc == 3 ? open(argv[1], O_RDONLY) : -1;

	if (fd < 0)
		return fprintf(stderr, "scan_loop MOUNTPOINT REPEATS\n"), 1;
	for (int left = atoi(argv[2]); left > 0; left--) {
		double cpu[3], wall[3];

		n_chunks = n_data = n_free = n_groups = 0;
		cpu[0] = seconds(CLOCK_PROCESS_CPUTIME_ID), wall[0] = seconds(CLOCK_MONOTONIC);
		if (read_items(fd, BTRFS_CHUNK_TREE_OBJECTID, BTRFS_FIRST_CHUNK_TREE_OBJECTID, BTRFS_CHUNK_ITEM_KEY, 0,
			       BTRFS_FIRST_CHUNK_TREE_OBJECTID, BTRFS_CHUNK_ITEM_KEY, UINT64_MAX) < 0 ||
		    read_items(fd, BTRFS_FREE_SPACE_TREE_OBJECTID, 0, 0, 0, UINT64_MAX, 255, UINT64_MAX) < 0)
			return perror("scan_loop"), 1;
		cpu[1] = seconds(CLOCK_PROCESS_CPUTIME_ID), wall[1] = seconds(CLOCK_MONOTONIC);
		read_block_groups(fd);
		cpu[2] = seconds(CLOCK_PROCESS_CPUTIME_ID), wall[2] = seconds(CLOCK_MONOTONIC);
		printf("%.6f %.6f %.6f %.6f %zu %zu %zu\n", cpu[1] - cpu[0], cpu[2] - cpu[1], wall[1] - wall[0], wall[2] - wall[1],
		       n_chunks, n_free, n_groups);
	}
	return 0;
}
