/* Reads files in a given order: open, read to the end, close. What a training epoch asks of a file system, and nothing else.
 *
 *   reader [-c] [-t THREADS] ROOT LIST
 *
 * LIST holds one path a line, relative to ROOT. Each thread takes a contiguous slice of it. Prints one line of JSON; `seconds` runs from the moment
 * when all threads are ready to the end of the last one. -c also makes a checksum of content and position of all files (and is not for timing).
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

static int root, with_checksum;
static char **paths;
static pthread_barrier_t ready;

struct slice {
    size_t begin, end;
    uint64_t bytes, checksum;
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

static void *read_slice(void *argument)
{
    struct slice *slice = argument;
    unsigned char *buffer = malloc(BUFFER_BYTES);
    if (!buffer)
        fail("memory");
    memset(buffer, 1, BUFFER_BYTES); /* so that no page of it is touched for the first time below */
    pthread_barrier_wait(&ready);
    for (size_t i = slice->begin; i < slice->end; i++) {
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

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    int threads = 1, option;
    while ((option = getopt(argc, argv, "ct:")) != -1) {
        if (option == 'c')
            with_checksum = 1;
        else if (option == 't')
            threads = atoi(optarg);
        else
            return 2;
    }
    if (argc - optind != 2 || threads < 1 || threads > MAX_THREADS) {
        fprintf(stderr, "usage: reader [-c] [-t THREADS] ROOT LIST\n");
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
    pthread_barrier_wait(&ready);
    double begin = now();
    uint64_t bytes = 0, checksum = 0;
    for (int t = 0; t < threads; t++) {
        pthread_join(slices[t].thread, NULL);
        bytes += slices[t].bytes;
        checksum += slices[t].checksum;
    }
    printf("{\"seconds\": %.6f, \"files\": %zu, \"bytes\": %llu, \"checksum\": \"%016llx\"}\n",
           now() - begin, files, (unsigned long long)bytes, (unsigned long long)checksum);
    return 0;
}
