/* Reads files in a given order: open, read to the end, close. What a training epoch asks of a file system, and nothing else.
 *
 *   reader [-c] [-w] [-r BYTES_PER_S] [-t THREADS] [-s MOMENT] ROOT LIST
 *
 * LIST holds one path a line, relative to ROOT. Each thread takes a contiguous slice of it. Prints
 * one line of JSON; `seconds` runs from the moment when the first thread begins to the end of the
 * last one. -w also times each file: `waits` are those that took longer than 1 ms, `longest` is one
 * file's seconds. -r keeps a thread to a pace, as a trainer would: a file is not opened before its
 * turn. -s begins at a moment of CLOCK_MONOTONIC, so that several processes begin together;
 * `seconds` runs from that moment. -c also makes a checksum of content and position of all files
 * (and is not for timing).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20, MAX_THREADS = 64 };

static int root, with_checksum, with_waits;
static double moment; /* of CLOCK_MONOTONIC, when reading begins; 0: at once */
static double pace; /* bytes a second of one thread; 0: as fast as it goes */
static char **paths;
static pthread_barrier_t ready;

struct slice {
    size_t begin, end;
    uint64_t bytes, checksum, waits;
    double started, longest;
    pthread_t thread;
};

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "reader: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t hash(uint64_t state, const unsigned char *data, size_t length) /* FNV-1a */
{
    for (size_t i = 0; i < length; i++)
        state = (state ^ data[i]) * 0x100000001b3;
    return state;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void sleep_until(double moment)
{
    struct timespec time = {.tv_sec = (time_t)moment, .tv_nsec = (long)((moment - (time_t)moment) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
        ;
}

static void *read_slice(void *argument)
{
    struct slice *slice = argument;
    unsigned char *buffer = malloc(BUFFER_BYTES);
    if (!buffer)
        fail("memory");
    memset(buffer, 1, BUFFER_BYTES); /* so that no page of it is touched for the first time below */
    pthread_barrier_wait(&ready);
    double begin = slice->started = now();
    for (size_t i = slice->begin; i < slice->end; i++) {
        if (pace && begin + slice->bytes / pace > now() + 2e-4) /* less is not worth a sleep */
            sleep_until(begin + slice->bytes / pace);
        double start = with_waits ? now() : 0;
        int fd = openat(root, paths[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            fail(paths[i]);
        uint64_t state = 0xcbf29ce484222325 ^ i;
        ssize_t got;
        while ((got = read(fd, buffer, BUFFER_BYTES)) > 0) {
            slice->bytes += got;
            if (with_checksum)
                state = hash(state, buffer, got);
        }
        if (got < 0)
            fail(paths[i]);
        close(fd);
        if (with_waits) {
            double took = now() - start;
            slice->waits += took > 1e-3;
            if (took > slice->longest)
                slice->longest = took;
        }
        slice->checksum += with_checksum ? state : 0; /* a sum: the same however the list is cut */
    }
    free(buffer);
    return NULL;
}

static size_t load_list(const char *name)
{
    struct stat status;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status))
        fail(name);
    char *text = malloc(status.st_size + 1);
    for (off_t done = 0; done < status.st_size;) {
        ssize_t got = read(fd, text + done, status.st_size - done);
        if (got <= 0)
            fail(name);
        done += got;
    }
    close(fd);
    text[status.st_size] = 0;
    size_t count = 0, size = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        if (count == size && !(paths = realloc(paths, (size = 2 * size + 1024) * sizeof *paths)))
            fail("memory");
        *end = 0;
        paths[count++] = line;
    }
    return count;
}

int main(int argc, char **argv)
{
    int threads = 1, option;
    while ((option = getopt(argc, argv, "cwr:t:s:")) != -1) {
        if (option == 'c')
            with_checksum = 1;
        else if (option == 'w')
            with_waits = 1;
        else if (option == 'r')
            pace = atof(optarg);
        else if (option == 't')
            threads = atoi(optarg);
        else if (option == 's')
            moment = atof(optarg);
        else
            return 2;
    }
    if (argc - optind != 2 || threads < 1 || threads > MAX_THREADS) {
        fprintf(stderr, "usage: reader [-c] [-w] [-r BYTES_PER_S] [-t THREADS] [-s MOMENT] ROOT LIST\n");
        return 2;
    }
    if ((root = open(argv[optind], O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        fail(argv[optind]);
    size_t files = load_list(argv[optind + 1]);
    struct slice slices[MAX_THREADS] = {0};
    pthread_barrier_init(&ready, NULL, threads + 1);
    for (int t = 0; t < threads; t++) {
        slices[t].begin = files * t / threads;
        slices[t].end = files * (t + 1) / threads;
        if ((errno = pthread_create(&slices[t].thread, NULL, read_slice, &slices[t])))
            fail("thread");
    }
    if (moment)
        sleep_until(moment);
    pthread_barrier_wait(&ready);
    double begin = moment ? moment : now();
    uint64_t bytes = 0, checksum = 0, waits = 0;
    double longest = 0;
    for (int t = 0; t < threads; t++) {
        pthread_join(slices[t].thread, NULL);
        if (slices[t].started < begin) /* under SCHED_FIFO a thread may end before this one goes on */
            begin = slices[t].started;
        bytes += slices[t].bytes;
        checksum += slices[t].checksum;
        waits += slices[t].waits;
        longest = slices[t].longest > longest ? slices[t].longest : longest;
    }
    printf("{\"seconds\": %.6f, \"files\": %zu, \"bytes\": %llu, \"checksum\": \"%016llx\", \"waits\": %llu, \"longest\": %.6f}\n",
           now() - begin, files, (unsigned long long)bytes, (unsigned long long)checksum, (unsigned long long)waits, longest);
    return 0;
}
