/* The fast path of a mount: requests of the kernel answered without the GIL, and files stored into its
 * page cache before they are read. Why, and what was rejected: docs/decisions/0005-fast-path.md.
 *
 *   module.c    the door to Python
 *   channel.c   threads that read requests; the way on to pyfuse3 for what they can't answer
 *   answers.c   the replies
 *   snapshot.c  names and attributes in a snapshot's memory map (docs/snapshot-format.md)
 *   listings.c  listings that readers have begun
 *   residents.c, residue.c, reading.c, storing.c, plan.c
 *               chunks: where they lie in memory, how far their readers are, what is stored ahead of them (chunks.h)
 *
 * One process holds one mount, so the state of each file is static. Numbers that come from a snapshot's map
 * are checked where they are used as an index: a damaged file yields an error, never other bytes.
 */
#ifndef DIESELFS_FAST_PATH_H
#define DIESELFS_FAST_PATH_H

#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- inodes: dieselfs/fuse/inodes.py ------------------------------------------------------------ */

#define ROOT_INODE 1
#define EPOCH_SHIFT 40
#define DIRECTORY_BASE (UINT64_C(1) << 39) /* snapshot inodes from here on are directories */
#define ROOT_NODE DIRECTORY_BASE
#define NO_NODE UINT64_MAX
#define DAMAGED (UINT64_MAX - 1)

static inline bool is_control(uint64_t inode)
{
    return inode > ROOT_INODE && inode < (UINT64_C(1) << EPOCH_SHIFT);
}

/* --- snapshot.c --------------------------------------------------------------------------------- */

typedef struct { /* a column that is written with the narrower of two widths */
    const void *rows;
    bool wide;
} Column;

static inline uint64_t at(Column column, uint64_t row)
{
    return column.wide ? ((const uint64_t *)column.rows)[row]
                       : ((const uint32_t *)column.rows)[row];
}

typedef struct Chunk Chunk;

/* One snapshot that the mount shows or has shown. Never freed before the mount ends. */
typedef struct {
    uint64_t number;
    uint64_t files, directories, chunks;
    /* by inode */
    Column offset, name_at;
    const uint64_t *length;
    const int64_t *mtime_ns;
    const uint16_t *mode;
    const uint32_t *chunk, *parent;
    const uint8_t *name_bytes;
    /* by rank; names is a heap */
    const uint32_t *by_name;
    const char *names;
    uint64_t names_bytes;
    /* by chunk */
    const uint8_t (*chunk_id)[16];
    const uint64_t *payload_bytes;
    const uint32_t *first_inode;
    /* by directory; directory_paths is a heap */
    const uint64_t *path_at;
    const uint16_t *directory_mode;
    const int64_t *directory_mtime_ns;
    const uint32_t *first_file, *file_count, *first_directory, *directory_count;
    const char *paths;
    uint64_t paths_bytes;
    /* what is known of each chunk and file: chunks.h */
    Chunk *state;
    _Atomic uint8_t *was_read, *was_stored;
    _Atomic uint64_t round; /* how often all of it started over */
} Epoch;

typedef struct {
    const char *bytes;
    size_t length;
} Name;

#define MAX_EPOCHS 65536
extern _Atomic(Epoch *) epochs[MAX_EPOCHS];
extern _Atomic uint64_t last_epoch;    /* known */
extern _Atomic uint64_t current_epoch; /* shown by the root; 0 before the first */

Epoch *epoch_of(uint64_t inode);             /* the root's is the current one; NULL if there is none */
uint64_t node_of(uint64_t inode);            /* its number within the epoch */
uint64_t inode_of(const Epoch *, uint64_t node);
bool is_node(const Epoch *, uint64_t node);
uint64_t find_child(const Epoch *, uint64_t directory, Name name); /* or NO_NODE, DAMAGED */
uint64_t child_at(const Epoch *, uint64_t directory, uint64_t position, Name *name);
void fill_attributes(const Epoch *, uint64_t node, struct fuse_attr *);

/* --- channel.c ---------------------------------------------------------------------------------- */

typedef struct {
    uint32_t uid, gid;      /* who owns everything in the mount */
    uint64_t timeout_s;     /* how long the kernel may believe what never changes */
} MountView;

extern MountView mount_view;
extern int fuse_fd;

void channel_enable(void);
bool channel_captured(void);
int channel_start(int threads);              /* 0 or an errno */
void channel_stop(void);

/* --- answers.c ---------------------------------------------------------------------------------- */

#define SCRATCH_BYTES (1 << 20)              /* no listing is asked for in larger pieces */

/* True if the request was answered, or needs no answer; false if Python has to. */
bool answer(struct fuse_in_header *request, size_t length, char *scratch);

#define OPCODES 64
extern _Atomic uint64_t answered[OPCODES];   /* without what was passed on */
extern _Atomic uint64_t bytes_answered, reads_answered;

/* --- listings.c --------------------------------------------------------------------------------- */

#define MAX_BEGUN 256 /* listings that wait for Python: a busy reader's of some milliseconds */

int listings_watch(void);                    /* a descriptor that is readable when listings have begun; -1 and errno */
void listings_ignore(uint32_t pid);          /* do not note the listings of this process */
void note_listing(uint64_t inode, uint32_t pid);
size_t take_listings(uint64_t inodes[MAX_BEGUN]);

/* --- residents.c -------------------------------------------------------------------------------- */

typedef struct Resident Resident;
typedef struct Residue Residue;
typedef struct Plan Plan;

int chunks_of(Epoch *);                      /* makes state, was_read, was_stored; 0 or ENOMEM */
void free_chunks_of(Epoch *);

/* `bytes` stays valid until `resident_release` has said so through `given_back`. */
bool resident_hold(const uint8_t id[16], const uint8_t *bytes, uint64_t length, void *owner);
bool resident_release(const uint8_t id[16]);
void *resident_given_back(void);             /* an owner whose bytes nobody uses any more, or NULL */
void residents_adopt(Epoch *);               /* let a new epoch find the chunks that it shares */

/* --- residue.c ---------------------------------------------------------------------------------- */

void residue_drop(const uint8_t id[16]);

/* --- reading.c ---------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *bytes;                    /* of the whole file */
    Resident *resident;                      /* what is pinned: one of the two */
    Residue *residue;
} PinnedFile;

/* Notes a READ and finds the file in memory. False if it is not there; otherwise `end_read` follows. */
bool begin_read(Epoch *, uint32_t chunk, uint32_t inode, bool from_beginning, PinnedFile *);
void end_read(PinnedFile *);
bool take_consumed(uint8_t id[16]);

/* --- storing.c ---------------------------------------------------------------------------------- */

typedef struct {
    uint64_t files, bytes, chunks, unknown_inodes, failed;
    uint64_t outstanding_bytes, budget_bytes, consumed_chunks, read_without_request;
    uint64_t plan_files_stored, reads_of_stored, residue_bytes;
} StoringStatistics;

int storing_start(int threads, uint64_t max_file_bytes); /* 0 or an errno */
bool storing_stop(double timeout_s);
void storing_set_budget(uint64_t bytes);
void storing_statistics(StoringStatistics *);
bool store_by_plan(const uint8_t id[16]);    /* false if it is not in memory, or was asked for before */
bool take_stored(uint8_t id[16], bool *went_well);

/* --- plan.c ------------------------------------------------------------------------------------- */

#define NOT_IN_PLAN UINT32_MAX

typedef struct {
    const uint32_t *order;                   /* inodes; looked at by `plan_set` only */
    uint32_t files;                          /* in the order */
    const uint32_t *position_of;             /* by inode: its index in the order, or NOT_IN_PLAN */
    uint64_t position_count;
    const uint8_t *sentinels;                /* a bit an inode */
    uint64_t sentinel_bytes;
    void *owner;
} PlanColumns;

typedef struct {
    uint32_t low, high;
    uint64_t off_plan;
} PlanProgress;

/* NULL, or what is wrong with it. The columns stay valid until `plan_given_back` has given their owner. */
const char *plan_set(uint64_t epoch, const PlanColumns *);
void plan_clear(void);
void *plan_given_back(void);                 /* an owner whose columns nobody uses any more, or NULL */
PlanProgress plan_progress(void);            /* zeros without a plan */
bool plan_advance(uint32_t low);             /* false without a plan, or beyond its end */
int plan_watch(void);                        /* a descriptor that is readable when there is news; -1 and errno */

#endif
