/* What is known of a chunk, shared by the files that deal with chunks:
 *
 *   residents.c  chunks in node memory
 *   residue.c    copies of single files of chunks that have left node memory
 *   reading.c    how far a chunk's readers are
 *   storing.c    the threads that store files into the kernel's page cache
 *   plan.c       the order in which files will be read, and how far in it the readers are
 *
 * Without a plan a chunk is IDLE until one of its files is READ; if it is in memory then, or as soon as it is (WANTED), it is
 * QUEUED and a storing thread stores (STORING, STORED) every file that was not read yet, but for its sentinels. A file that the
 * kernel has in its cache makes no request, so the sentinels' READs are the only sign of how far the reader is. When every file that
 * was not stored has been READ the chunk is CONSUMED. A READ of a file that was stored says that the kernel dropped it; after a few of
 * these the chunk starts over. If the kernel does not know the files it is UNKNOWN for a while.
 *
 * With a plan a chunk is IDLE until it is asked for; then it is QUEUED, STORING and STORED, or IDLE again if that failed.
 *
 * One lock guards all of it. It is held for a few instructions a file at most, never in a system call. Functions of this header are
 * called with the lock held, unless they say otherwise; those of fast_path.h take it.
 */
#ifndef DIESELFS_CHUNKS_H
#define DIESELFS_CHUNKS_H

#include "fast_path.h"

#include <time.h>

enum state { IDLE, WANTED, QUEUED, STORING, STORED, CONSUMED, UNKNOWN };

struct Resident {
    uint8_t id[16];
    const uint8_t *bytes;
    uint64_t length;
    void *owner;
    int pins;
    bool held;
    Resident *next;
};

struct Chunk {
    Resident *resident;
    Resident *storing; /* pinned while the thread stores from it: READs are answered from it even if it was evicted */
    Residue *residue;
    enum state state;
    uint32_t stored_files;
    uint32_t unstored_files, unstored_left; /* of those: not READ yet */
    uint32_t events;                        /* what makes the chunk start over, or be tried again */
    uint64_t stored_bytes;                  /* what it takes of the budget */
    time_t touched;
    Epoch *epoch;
    Chunk *next_to_store, *next_consumed, *next_ended;
    bool is_consumed, is_ended; /* in that queue */
    bool went_well;             /* its last storing by plan */
    uint64_t storing_round;     /* the epoch's when that began */
    bool store_again;           /* asked for while a thread still stores it for a round that is over */
};

extern pthread_mutex_t chunks_lock;
extern StoringStatistics totals;

/* --- bits of files; need no lock -------------------------------------------------------------------- */

static inline bool has(const _Atomic uint8_t *bits, uint64_t inode)
{
    return atomic_load_explicit(&bits[inode / 8], memory_order_relaxed) >> inode % 8 & 1;
}

static inline bool set(_Atomic uint8_t *bits, uint64_t inode)
{
    uint8_t bit = (uint8_t)(1 << inode % 8);
    return atomic_fetch_or_explicit(&bits[inode / 8], bit, memory_order_relaxed) & bit;
}

static inline void clear(_Atomic uint8_t *bits, uint64_t inode)
{
    atomic_fetch_and_explicit(&bits[inode / 8], (uint8_t)~(1 << inode % 8), memory_order_relaxed);
}

/* --- files of a chunk; need no lock ----------------------------------------------------------------- */

typedef struct {
    uint32_t first, end;
} Files;

static inline uint32_t number_of(const Chunk *chunk)
{
    return (uint32_t)(chunk - chunk->epoch->state);
}

Files files_of(const Chunk *); /* none if the snapshot is damaged */
uint32_t sentinel_step(Files); /* without a plan: every how many files there is a sentinel; 0 for none */

static inline bool is_sentinel(Files files, uint32_t inode, uint32_t step)
{
    return step && (inode - files.first) % step == step / 2;
}

/* --- residents.c ------------------------------------------------------------------------------------ */

Chunk *find_chunk(const Epoch *, const uint8_t id[16]); /* needs no lock */
Resident *pin(Chunk *);                                 /* or NULL */
void unpin(Resident *);

/* --- residue.c -------------------------------------------------------------------------------------- */

/* Copies of some files of the chunk, of at most `bytes` together, to be filled by residue_add in the order of their inodes, by the
 * thread that made it: needs no lock. NULL if there is no memory. */
Residue *residue_new(uint32_t files, uint64_t bytes);
void residue_add(Residue *, uint32_t inode, const uint8_t *bytes, uint32_t length);

/* What nobody uses any more is put at the head of `unused`: residue_free it when the lock is no longer held. */
void residue_attach(Chunk *, Residue *, Residue **unused);
void residue_detach(Chunk *, Residue **unused);
const uint8_t *residue_pin(Chunk *, uint32_t inode); /* the file's bytes, or NULL */
void residue_unpin(Residue *, Residue **unused);
void residue_free(Residue *unused);

/* --- reading.c -------------------------------------------------------------------------------------- */

void leave_budget(Chunk *);
void consume(Chunk *);

/* --- storing.c -------------------------------------------------------------------------------------- */

void queue_if_room(Chunk *);
void queue(Chunk *);
void start_all_over(Epoch *, Residue **unused); /* every chunk and file; what a thread is storing now will not count */
bool is_any_ended(void);                        /* storings by plan that nobody took yet */
void forget_ended(void);

/* --- plan.c ----------------------------------------------------------------------------------------- */

Epoch *planned_epoch(void);    /* or NULL */
Plan *plan_of(const Epoch *);  /* or NULL */
Plan *plan_pin(const Epoch *); /* or NULL; its columns are there until it is unpinned */
void plan_unpin(Plan *);
bool plan_note_read(Plan *, uint32_t inode, bool again, bool from_beginning); /* true if the clock moved */

/* Need no lock but the pin. */
bool plan_is_sentinel(const Plan *, uint32_t inode);
bool plan_is_to_come(const Plan *, uint32_t inode); /* in the plan, and readers are not known to be past it */

void plan_tell(void); /* whoever waits for news; not under the lock */

#endif
