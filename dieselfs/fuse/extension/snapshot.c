/* Names and attributes, read in place from the memory map of a snapshot. */
#include "fast_path.h"

#include <string.h>
#include <sys/stat.h>

#define DIRECTORY_BYTES 4096 /* dieselfs/fuse/attributes.py */
#define BLOCK_BYTES 4096
#define NS UINT64_C(1000000000)

_Atomic(Epoch *) epochs[MAX_EPOCHS];
_Atomic uint64_t last_epoch, current_epoch;

Epoch *epoch_of(uint64_t inode)
{
    uint64_t number = inode == ROOT_INODE ? atomic_load(&current_epoch) : inode >> EPOCH_SHIFT;
    return number < MAX_EPOCHS ? atomic_load(&epochs[number]) : NULL;
}

uint64_t node_of(uint64_t inode)
{
    return inode == ROOT_INODE ? ROOT_NODE : inode & ((UINT64_C(1) << EPOCH_SHIFT) - 1);
}

uint64_t inode_of(const Epoch *epoch, uint64_t node)
{
    return node == ROOT_NODE ? ROOT_INODE : epoch->number << EPOCH_SHIFT | node;
}

bool is_node(const Epoch *epoch, uint64_t node)
{
    return node < DIRECTORY_BASE ? node < epoch->files : node - DIRECTORY_BASE < epoch->directories;
}

static bool path_of(const Epoch *epoch, uint64_t directory, Name *path)
{
    uint64_t begin = epoch->path_at[directory], end = epoch->path_at[directory + 1];
    *path = (Name){epoch->paths + begin, end - begin};
    return begin <= end && end <= epoch->paths_bytes;
}

/* The last component: what follows the parent's path, without the '/' at the end. */
static bool directory_name(const Epoch *epoch, uint64_t parent, uint64_t child, Name *name)
{
    Name above;
    if (child >= epoch->directories || !path_of(epoch, parent, &above) || !path_of(epoch, child, name) ||
        name->length < above.length + 2)
        return false;
    *name = (Name){name->bytes + above.length, name->length - above.length - 1};
    return true;
}

static bool file_name(const Epoch *epoch, uint64_t parent, uint64_t rank, uint32_t *inode, Name *name)
{
    if (rank >= epoch->files)
        return false;
    *inode = epoch->by_name[rank];
    if (*inode >= epoch->files || epoch->parent[*inode] != parent)
        return false;
    uint64_t begin = at(epoch->name_at, *inode);
    *name = (Name){epoch->names + begin, epoch->name_bytes[*inode]};
    return begin + name->length <= epoch->names_bytes;
}

static int compare(Name a, Name b)
{
    int order = memcmp(a.bytes, b.bytes, a.length < b.length ? a.length : b.length);
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

/* Children are sorted by name, directories and files apart: two binary searches. DAMAGED if the snapshot is. */
uint64_t find_child(const Epoch *epoch, uint64_t node, Name wanted)
{
    uint64_t parent = node - DIRECTORY_BASE;
    Name name;
    uint64_t low = epoch->first_directory[parent], high = low + epoch->directory_count[parent];
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (!directory_name(epoch, parent, middle, &name))
            return DAMAGED;
        int order = compare(wanted, name);
        if (!order)
            return DIRECTORY_BASE + middle;
        *(order < 0 ? &high : &low) = order < 0 ? middle : middle + 1;
    }
    low = epoch->first_file[parent], high = low + epoch->file_count[parent];
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        uint32_t inode;
        if (!file_name(epoch, parent, middle, &inode, &name))
            return DAMAGED;
        int order = compare(wanted, name);
        if (!order)
            return inode;
        *(order < 0 ? &high : &low) = order < 0 ? middle : middle + 1;
    }
    return NO_NODE;
}

/* The order of a listing: sub-directories, then files; NO_NODE at the end, DAMAGED if the snapshot is. */
uint64_t child_at(const Epoch *epoch, uint64_t node, uint64_t position, Name *name)
{
    uint64_t parent = node - DIRECTORY_BASE, directories = epoch->directory_count[parent];
    if (position < directories) {
        uint64_t child = epoch->first_directory[parent] + position;
        return directory_name(epoch, parent, child, name) ? DIRECTORY_BASE + child : DAMAGED;
    }
    position -= directories;
    if (position >= epoch->file_count[parent])
        return NO_NODE;
    uint32_t inode;
    return file_name(epoch, parent, epoch->first_file[parent] + position, &inode, name) ? inode : DAMAGED;
}

void fill_attributes(const Epoch *epoch, uint64_t node, struct fuse_attr *attributes)
{
    bool directory = node >= DIRECTORY_BASE;
    uint64_t row = directory ? node - DIRECTORY_BASE : node;
    int64_t time_ns = directory ? epoch->directory_mtime_ns[row] : epoch->mtime_ns[row];
    int64_t seconds = time_ns / (int64_t)NS - (time_ns % (int64_t)NS < 0); /* before 1970 too */
    uint32_t nanoseconds = (uint32_t)(time_ns - seconds * (int64_t)NS);
    uint64_t size = directory ? DIRECTORY_BYTES : epoch->length[row];
    *attributes = (struct fuse_attr){
        .ino = inode_of(epoch, node),
        .size = size,
        .blocks = (size + 511) / 512,
        .atime = (uint64_t)seconds,
        .mtime = (uint64_t)seconds,
        .ctime = (uint64_t)seconds,
        .atimensec = nanoseconds,
        .mtimensec = nanoseconds,
        .ctimensec = nanoseconds,
        .mode = directory ? epoch->directory_mode[row] : epoch->mode[row],
        .nlink = directory ? 2 + epoch->directory_count[row] : 1,
        .uid = mount_view.uid,
        .gid = mount_view.gid,
        .blksize = BLOCK_BYTES,
    };
}
