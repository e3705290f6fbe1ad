// many FOLDER FILES PROCESSES [TIMES]: each process opens its share of as many different names, once
// or as often; all of them at once.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    int gate[2];
    char path[4096], byte;
    if (argc < 4 || pipe(gate))
        return 1;
    long processes = atol(argv[3]), share = atol(argv[2]) / processes;
    long opens = share * (argc > 4 ? atol(argv[4]) : 1);
    for (int i = 0; i < processes; i++)
        if (!fork()) {
            close(gate[1]);
            if (read(gate[0], &byte, 1))
                _exit(1);
            for (long k = 0; k < opens; k++) {
                snprintf(path, sizeof path, "%s/%d/f%07ld", argv[1], i, k % share);
                int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
                if (fd >= 0)
                    close(fd);
            }
            _exit(0);
        }
    double start = now();
    close(gate[1]);
    while (wait(NULL) > 0)
        ;
    fprintf(stderr, "%.4f\n", now() - start);
    return 0;
}
