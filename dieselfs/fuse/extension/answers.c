/* Replies from the snapshot's map and from chunks in memory. Whatever is odd is left to Python, which has the
 * errors and the log for it. */
#include "fast_path.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define CONTROL_NAME ".dieselfs" /* dieselfs/fuse/control_names.py */
#define MAX_NAME_BYTES 255

_Atomic uint64_t answered[OPCODES], bytes_answered, reads_answered;

static _Atomic bool kernel_skips_open, kernel_skips_opendir;

/* Counted first: who has an answer finds it in the statistics. */
static bool count(const struct fuse_in_header *request)
{
    atomic_fetch_add_explicit(&answered[request->opcode % OPCODES], 1, memory_order_relaxed);
    return true;
}

static bool reply(const struct fuse_in_header *request, int error, const void *body, size_t length)
{
    count(request);
    struct fuse_out_header header = {
        .len = (uint32_t)(sizeof header + length), .error = -error, .unique = request->unique};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)body, length}};
    /* It fails if the asker was interrupted or the mount is ending: nobody waits then. */
    ssize_t ignored = writev(fuse_fd, parts, length ? 2 : 1);
    (void)ignored;
    return true;
}

static void fill_entry(const Epoch *epoch, uint64_t node, struct fuse_entry_out *entry)
{
    *entry = (struct fuse_entry_out){
        .nodeid = inode_of(epoch, node),
        .entry_valid = mount_view.timeout_s,
        .attr_valid = mount_view.timeout_s,
    };
    fill_attributes(epoch, node, &entry->attr);
}

static bool lookup(const struct fuse_in_header *request, Epoch *epoch, uint64_t directory, Name name)
{
    bool in_root = request->nodeid == ROOT_INODE;
    if (in_root && name.length == strlen(CONTROL_NAME) && !memcmp(name.bytes, CONTROL_NAME, name.length))
        return false;
    struct fuse_entry_out entry;
    uint64_t child = find_child(epoch, directory, name);
    if (child == DAMAGED)
        return false;
    if (child != NO_NODE) {
        fill_entry(epoch, child, &entry);
        return reply(request, 0, &entry, sizeof entry);
    }
    if (name.length > MAX_NAME_BYTES)
        return reply(request, ENAMETOOLONG, NULL, 0);
    if (in_root) /* a later epoch may bring the name: dataset_tree.py */
        return reply(request, ENOENT, NULL, 0);
    entry = (struct fuse_entry_out){.entry_valid = mount_view.timeout_s}; /* known to be absent */
    return reply(request, 0, &entry, sizeof entry);
}

static bool getattr(const struct fuse_in_header *request, const Epoch *epoch, uint64_t node)
{
    struct fuse_attr_out out = {.attr_valid = mount_view.timeout_s};
    fill_attributes(epoch, node, &out.attr);
    return reply(request, 0, &out, sizeof out);
}

/* As many children as fit, from a position on. Positions in the root carry their epoch: a listing that began in an
 * older one is finished from there, but its names are not to become entries of today's root (node id 0). */
static bool list(const struct fuse_in_header *request, Epoch *epoch, uint64_t node,
                 const struct fuse_read_in *arguments, bool with_entries, char *scratch)
{
    uint64_t position = arguments->offset, tag = 0;
    bool outdated = false;
    if (node == ROOT_NODE) {
        if (position) {
            Epoch *begun = epoch_of(position);
            if (position >> EPOCH_SHIFT == 0 || !begun)
                return reply(request, EINVAL, NULL, 0);
            outdated = begun != epoch;
            epoch = begun;
        }
        tag = epoch->number << EPOCH_SHIFT;
        position &= (UINT64_C(1) << EPOCH_SHIFT) - 1;
    }
    if (!arguments->offset)
        note_listing(request->nodeid, request->pid);
    size_t room = arguments->size < SCRATCH_BYTES ? arguments->size : SCRATCH_BYTES, used = 0;
    size_t fixed = with_entries ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
    Name name;
    uint64_t child;
    for (; (child = child_at(epoch, node, position, &name)) < DAMAGED; position++) {
        if (node == ROOT_NODE && name.length == strlen(CONTROL_NAME) &&
            !memcmp(name.bytes, CONTROL_NAME, name.length))
            continue; /* hidden by the control directory */
        size_t length = FUSE_DIRENT_ALIGN(fixed + name.length);
        if (used + length > room)
            break;
        char *place = scratch + used;
        memset(place + length - 8, 0, 8); /* the padding after the name */
        struct fuse_dirent *dirent = (struct fuse_dirent *)place;
        struct fuse_attr attributes;
        if (with_entries) {
            struct fuse_direntplus *plus = (struct fuse_direntplus *)place;
            fill_entry(epoch, child, &plus->entry_out);
            attributes = plus->entry_out.attr;
            if (outdated)
                plus->entry_out.nodeid = 0;
            dirent = &plus->dirent;
        } else {
            fill_attributes(epoch, child, &attributes);
        }
        *dirent = (struct fuse_dirent){
            .ino = attributes.ino,
            .off = tag | (position + 1),
            .namelen = (uint32_t)name.length,
            .type = attributes.mode >> 12,
        };
        memcpy(dirent->name, name.bytes, name.length);
        used += length;
    }
    return (child != DAMAGED || used) && reply(request, 0, scratch, used);
}

static bool read_file(const struct fuse_in_header *request, Epoch *epoch, uint64_t node,
                      const struct fuse_read_in *arguments)
{
    uint32_t chunk = epoch->chunk[node];
    uint64_t length = epoch->length[node], offset = at(epoch->offset, node);
    if (chunk >= epoch->chunks || node < epoch->first_inode[chunk] ||
        node >= epoch->first_inode[chunk + 1] || offset + length < offset ||
        offset + length > epoch->payload_bytes[chunk])
        return false;
    uint64_t wanted = arguments->offset < length ? length - arguments->offset : 0;
    if (wanted > arguments->size)
        wanted = arguments->size;
    if (!wanted)
        return reply(request, 0, NULL, 0);
    PinnedFile file;
    if (!begin_read(epoch, chunk, (uint32_t)node, arguments->offset == 0, &file))
        return false;
    atomic_fetch_add_explicit(&reads_answered, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&bytes_answered, wanted, memory_order_relaxed);
    reply(request, 0, file.bytes + arguments->offset, wanted);
    end_read(&file);
    return true;
}

static bool forgets_control_file(const struct fuse_in_header *request, const char *body, size_t length)
{
    if (request->opcode == FUSE_FORGET)
        return is_control(request->nodeid);
    const struct fuse_batch_forget_in *batch = (const void *)body;
    const struct fuse_forget_one *one = (const void *)(batch + 1);
    size_t count = (length - sizeof *batch) / sizeof *one;
    for (size_t i = 0; i < batch->count && i < count; i++)
        if (is_control(one[i].nodeid))
            return true;
    return false;
}

static bool starts_with(const char *text, size_t length, const char *prefix)
{
    return length >= strlen(prefix) && !memcmp(text, prefix, strlen(prefix));
}

bool answer(struct fuse_in_header *request, size_t length, char *scratch)
{
    const char *body = (const char *)(request + 1);
    size_t body_length = length - sizeof *request;
    switch (request->opcode) {
    case FUSE_INIT: {
        /* ENOSYS may end the OPENs only if the kernel says that it knows what that means (design §6 f). */
        const struct fuse_init_in *init = (const void *)body;
        kernel_skips_open = init->flags & FUSE_NO_OPEN_SUPPORT;
        kernel_skips_opendir = init->flags & FUSE_NO_OPENDIR_SUPPORT;
        return false;
    }
    case FUSE_INTERRUPT: /* answers come soon, or the store decides */
        return count(request);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
        return !forgets_control_file(request, body, body_length) && count(request);
    case FUSE_OPEN:
        return kernel_skips_open && reply(request, ENOSYS, NULL, 0);
    case FUSE_OPENDIR:
        return kernel_skips_opendir && reply(request, ENOSYS, NULL, 0);
    case FUSE_FLUSH:
        return reply(request, ENOSYS, NULL, 0);
    case FUSE_IOCTL: /* Python's open() asks of each file whether it is a terminal */
        return reply(request, ENOTTY, NULL, 0);
    case FUSE_GETXATTR: { /* `ls -l` asks for access lists: operations.py */
        size_t fixed = sizeof(struct fuse_getxattr_in);
        const char *name = body + fixed;
        return body_length > fixed &&
               (starts_with(name, body_length - fixed, "system.") ||
                starts_with(name, body_length - fixed, "security.")) &&
               reply(request, EOPNOTSUPP, NULL, 0);
    }
    }
    if (is_control(request->nodeid))
        return false;
    Epoch *epoch = epoch_of(request->nodeid);
    uint64_t node = node_of(request->nodeid);
    if (!epoch || !is_node(epoch, node))
        return false;
    bool directory = node >= DIRECTORY_BASE;
    switch (request->opcode) {
    case FUSE_LOOKUP:
        return directory && lookup(request, epoch, node, (Name){body, strnlen(body, body_length)});
    case FUSE_GETATTR:
        return getattr(request, epoch, node);
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
        return directory && list(request, epoch, node, (const void *)body,
                                 request->opcode == FUSE_READDIRPLUS, scratch);
    case FUSE_READ:
        return !directory && read_file(request, epoch, node, (const void *)body);
    default:
        return false;
    }
}
