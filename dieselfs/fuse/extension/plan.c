/* The order in which files will be read, and its clock: how far in it every reader is.
 *
 * A file that the kernel has makes no request, so the clock is moved by the READs of sentinels, which are never stored. A reader that
 * comes to a sentinel has read what the order has before it. What lies between two sentinels is not known to be read until the second
 * one is; so the last file of the order is always a sentinel.
 */
#include "chunks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

typedef struct {
    uint32_t position, inode;
} Sentinel;

struct Plan {
    Epoch *epoch;
    PlanColumns columns; /* the caller's memory: never used as an index */
    Sentinel *sentinels; /* in the order of their positions */
    uint32_t sentinel_count, last_inode;
    uint32_t next;       /* of the sentinels: the first one that was not READ, or passed by force */
    _Atomic uint32_t low;
    uint32_t high;
    uint64_t off_plan;
    int users;
    bool current;
    Plan *next_given_back;
};

static Plan *current, *given_back;
static int event_fd = -1;
static _Atomic bool watched, told;

/* --- what a plan says ------------------------------------------------------------------------------- */

static bool has_bit(const PlanColumns *columns, uint32_t inode)
{
    return columns->sentinels[inode / 8] >> inode % 8 & 1;
}

bool plan_is_sentinel(const Plan *plan, uint32_t inode)
{
    return has_bit(&plan->columns, inode) || inode == plan->last_inode;
}

bool plan_is_to_come(const Plan *plan, uint32_t inode)
{
    uint32_t position = plan->columns.position_of[inode];
    return position != NOT_IN_PLAN && position >= plan->low;
}

static const char *fault_in(const Epoch *epoch, const PlanColumns *columns)
{
    for (uint32_t i = 0; i < columns->files; i++)
        if (columns->order[i] >= epoch->files)
            return "the order holds a number that is no file's";
    for (uint64_t inode = 0; inode < epoch->files; inode++) {
        uint32_t position = columns->position_of[inode];
        if (position != NOT_IN_PLAN && (position >= columns->files || columns->order[position] != inode))
            return "the order does not hold a file at the position that it is given";
    }
    return NULL;
}

/* Empty files are never READ, and of a file that occurs twice only one position counts. */
static bool is_clocked(const Epoch *epoch, const PlanColumns *columns, uint32_t position)
{
    uint32_t inode = columns->order[position];
    return columns->position_of[inode] == position && epoch->length[inode];
}

static bool collect_sentinels(Plan *plan)
{
    const PlanColumns *columns = &plan->columns;
    uint32_t count = 0, last = NOT_IN_PLAN;
    plan->last_inode = NOT_IN_PLAN;
    for (uint32_t i = 0; i < columns->files; i++)
        if (is_clocked(plan->epoch, columns, i)) {
            count += has_bit(columns, columns->order[i]);
            last = i;
        }
    if (!(plan->sentinels = malloc((count + 1) * sizeof *plan->sentinels)))
        return false;
    if (last != NOT_IN_PLAN)
        plan->last_inode = columns->order[last];
    for (uint32_t i = 0; i < columns->files; i++) {
        uint32_t inode = columns->order[i];
        if (plan_is_sentinel(plan, inode) && is_clocked(plan->epoch, columns, i))
            plan->sentinels[plan->sentinel_count++] = (Sentinel){i, inode};
    }
    return true;
}

/* --- the clock -------------------------------------------------------------------------------------- */

static void move_on(Plan *plan)
{
    uint32_t low = plan->low;
    for (; plan->next < plan->sentinel_count; plan->next++) {
        Sentinel sentinel = plan->sentinels[plan->next];
        if (sentinel.position >= low && !has(plan->epoch->was_read, sentinel.inode))
            break;
        if (sentinel.position >= low)
            low = sentinel.position + 1;
    }
    plan->low = plan->next < plan->sentinel_count ? low : plan->columns.files;
}

bool plan_note_read(Plan *plan, uint32_t inode, bool again, bool from_beginning)
{
    bool to_come = plan_is_to_come(plan, inode);
    if (from_beginning) {
        plan->off_plan += !to_come;
        totals.reads_of_stored += to_come && !again && has(plan->epoch->was_stored, inode);
    }
    if (!to_come)
        return false;
    uint32_t low = plan->low, position = plan->columns.position_of[inode];
    bool farther = position >= plan->high;
    if (farther)
        plan->high = position + 1;
    if (plan->next < plan->sentinel_count && plan->sentinels[plan->next].inode == inode)
        move_on(plan);
    return farther || plan->low != low;
}

bool plan_advance(uint32_t low)
{
    bool known = false, moved = false;
    pthread_mutex_lock(&chunks_lock);
    if (current && (known = low <= current->columns.files) && low > current->low) {
        current->low = low;
        move_on(current);
        moved = true;
    }
    pthread_mutex_unlock(&chunks_lock);
    if (moved)
        plan_tell();
    return known;
}

PlanProgress plan_progress(void)
{
    PlanProgress progress = {0};
    eventfd_t ignored;
    if (watched)
        eventfd_read(event_fd, &ignored); /* first: what happens from here on makes it readable again */
    told = false;
    pthread_mutex_lock(&chunks_lock);
    if (current)
        progress = (PlanProgress){current->low, current->high, current->off_plan};
    bool more = is_any_ended();
    pthread_mutex_unlock(&chunks_lock);
    if (more)
        plan_tell();
    return progress;
}

int plan_watch(void)
{
    if (event_fd < 0)
        event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    watched = event_fd >= 0;
    return event_fd;
}

void plan_tell(void)
{
    if (watched && !atomic_exchange(&told, true))
        eventfd_write(event_fd, 1);
}

/* --- which plan is followed ------------------------------------------------------------------------- */

Plan *plan_of(const Epoch *epoch)
{
    return current && current->epoch == epoch ? current : NULL;
}

Epoch *planned_epoch(void)
{
    return current ? current->epoch : NULL;
}

static void give_back_if_unused(Plan *plan)
{
    if (plan->current || plan->users)
        return;
    plan->next_given_back = given_back;
    given_back = plan;
}

Plan *plan_pin(const Epoch *epoch)
{
    Plan *plan = plan_of(epoch);
    if (plan)
        plan->users++;
    return plan;
}

void plan_unpin(Plan *plan)
{
    plan->users--;
    give_back_if_unused(plan);
}

static void replace(Plan *plan)
{
    Residue *unused = NULL;
    pthread_mutex_lock(&chunks_lock);
    forget_ended();
    Plan *before = current;
    if (before)
        start_all_over(before->epoch, &unused);
    if (plan && (!before || before->epoch != plan->epoch))
        start_all_over(plan->epoch, &unused);
    if ((current = plan)) {
        plan->current = true;
        move_on(plan);
    }
    if (before) {
        before->current = false;
        give_back_if_unused(before);
    }
    pthread_mutex_unlock(&chunks_lock);
    residue_free(unused);
}

const char *plan_set(uint64_t number, const PlanColumns *columns)
{
    Epoch *epoch = number && number < MAX_EPOCHS ? epochs[number] : NULL;
    if (!epoch)
        return "there is no such epoch";
    if (columns->position_count != epoch->files)
        return "there is not one position for each file";
    if (columns->sentinel_bytes < (epoch->files + 7) / 8)
        return "there is not one bit for each file";
    const char *fault = fault_in(epoch, columns);
    if (fault)
        return fault;
    Plan *plan = calloc(1, sizeof *plan);
    if (plan)
        *plan = (Plan){.epoch = epoch, .columns = *columns};
    if (!plan || !collect_sentinels(plan)) {
        free(plan);
        return "there is no memory for it";
    }
    replace(plan);
    return NULL;
}

void plan_clear(void)
{
    replace(NULL);
}

void *plan_given_back(void)
{
    pthread_mutex_lock(&chunks_lock);
    Plan *plan = given_back;
    if (plan)
        given_back = plan->next_given_back;
    pthread_mutex_unlock(&chunks_lock);
    if (!plan)
        return NULL;
    void *owner = plan->columns.owner;
    free(plan->sentinels);
    free(plan);
    return owner;
}
