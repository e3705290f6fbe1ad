// renamed OPENS DEPTH: opens a file while folders above it are renamed: one that is close to it, and
// one so many folders further up. Of the names that both have, one pair never is there: a…/d….
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define A "aaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbb"
#define C "cccccccccccccccccccccc"
#define D "dddddddddddddddddddddd"

static int into(int at, const char *name)
{
    if (mkdirat(at, name, 0700))
        exit(1);
    return openat(at, name, O_PATH | O_DIRECTORY);
}

int main(int argc, char **argv)
{
    int opens = atoi(argv[1]), depth = atoi(argv[2]), parent = into(AT_FDCWD, A);
    while (depth--) {
        int below = into(parent, "m");
        close(parent);
        parent = below;
    }
    int folder = into(parent, C);
    close(openat(folder, "f", O_CREAT | O_WRONLY, 0600));
    pid_t mover = fork();
    if (!mover)
        for (;;) {
            renameat(AT_FDCWD, A, AT_FDCWD, B);
            renameat(parent, C, parent, D);
            renameat(parent, D, parent, C);
            renameat(AT_FDCWD, B, AT_FDCWD, A);
        }
    while (opens--)
        close(openat(folder, "f", O_RDONLY));
    kill(mover, SIGKILL);
    waitpid(mover, NULL, 0);
    return 0;
}
