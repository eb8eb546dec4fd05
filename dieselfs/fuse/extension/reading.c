/* How far a chunk's readers are, as their READs tell, and where what they ask for lies in memory. */
#include "chunks.h"

#include <string.h>

#define FILES_PER_SENTINEL 64
#define MIN_SENTINELS 2      /* where a chunk has enough files to spare them */
#define SPARE_FILES 16
#define LOST_SHARE 16        /* one file of so many lost, and the chunk starts over */
#define UNKNOWN_RETRY 32     /* READs after which a chunk that the kernel did not know is tried again */

static Chunk *consumed;

Files files_of(const Chunk *chunk)
{
    const uint32_t *first = chunk->epoch->first_inode + number_of(chunk);
    bool sound = first[0] <= first[1] && first[1] <= chunk->epoch->files;
    return sound ? (Files){first[0], first[1]} : (Files){0, 0};
}

uint32_t sentinel_step(Files files)
{
    uint32_t count = files.end - files.first;
    if (count < SPARE_FILES)
        return 0;
    return count >= MIN_SENTINELS * FILES_PER_SENTINEL ? FILES_PER_SENTINEL : count / MIN_SENTINELS;
}

void leave_budget(Chunk *chunk)
{
    totals.outstanding_bytes -= chunk->stored_bytes;
    chunk->stored_bytes = 0;
}

static void start_over(Chunk *chunk)
{
    Files files = files_of(chunk);
    for (uint32_t inode = files.first; inode < files.end; inode++) {
        clear(chunk->epoch->was_read, inode);
        clear(chunk->epoch->was_stored, inode);
    }
    leave_budget(chunk);
    chunk->events = 0;
    chunk->state = IDLE;
}

void consume(Chunk *chunk)
{
    leave_budget(chunk);
    totals.consumed_chunks++;
    totals.read_without_request += chunk->stored_files;
    chunk->state = CONSUMED;
    chunk->events = 0;
    if (!chunk->is_consumed) {
        chunk->is_consumed = true;
        chunk->next_consumed = consumed;
        consumed = chunk;
    }
}

static void lost_one(Chunk *chunk)
{
    Files files = files_of(chunk);
    if (++chunk->events > (files.end - files.first) / LOST_SHARE)
        start_over(chunk);
}

/* A file is READ from its beginning, without a plan. */
static void note_reader(Chunk *chunk, uint32_t inode, bool again)
{
    Epoch *epoch = chunk->epoch;
    if (chunk->state == STORED || chunk->state == CONSUMED) {
        chunk->touched = time(NULL);
        if (again || has(epoch->was_stored, inode))
            lost_one(chunk);
        else if (chunk->state == STORED && --chunk->unstored_left == 0)
            consume(chunk);
    } else if (chunk->state == UNKNOWN && ++chunk->events >= UNKNOWN_RETRY) {
        chunk->events = 0;
        chunk->state = IDLE;
    }
    if (chunk->state == IDLE) {
        set(epoch->was_read, inode); /* also if the chunk has just started over */
        if (chunk->resident)
            queue_if_room(chunk);
        else
            chunk->state = WANTED;
    }
}

/* What is READ will not be stored: its pages may be locked until the READ is answered, and an answer from Python could be one
 * that waits for a store (a chunk in memory is READ without Python). */
bool begin_read(Epoch *epoch, uint32_t number, uint32_t inode, bool from_beginning, PinnedFile *file)
{
    Chunk *chunk = &epoch->state[number];
    bool moved = false;
    *file = (PinnedFile){0};
    pthread_mutex_lock(&chunks_lock);
    bool again = set(epoch->was_read, inode);
    Plan *plan = plan_of(epoch);
    if (plan)
        moved = plan_note_read(plan, inode, again, from_beginning);
    else if (from_beginning)
        note_reader(chunk, inode, again);
    if ((file->resident = pin(chunk)))
        file->bytes = file->resident->bytes + at(epoch->offset, inode);
    else if ((file->bytes = residue_pin(chunk, inode)))
        file->residue = chunk->residue;
    pthread_mutex_unlock(&chunks_lock);
    if (moved)
        plan_tell();
    return file->bytes;
}

void end_read(PinnedFile *file)
{
    Residue *unused = NULL;
    pthread_mutex_lock(&chunks_lock);
    if (file->resident)
        unpin(file->resident);
    else
        residue_unpin(file->residue, &unused);
    pthread_mutex_unlock(&chunks_lock);
    residue_free(unused);
}

bool take_consumed(uint8_t id[16])
{
    pthread_mutex_lock(&chunks_lock);
    Chunk *chunk;
    while ((chunk = consumed)) {
        consumed = chunk->next_consumed;
        chunk->is_consumed = false;
        if (chunk->state != CONSUMED) /* it has started over */
            continue;
        memcpy(id, chunk->epoch->chunk_id[number_of(chunk)], 16);
        break;
    }
    pthread_mutex_unlock(&chunks_lock);
    return chunk;
}
