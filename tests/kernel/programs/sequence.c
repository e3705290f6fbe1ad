/* Work in a fixed order, with one process at a time: what is recorded of it does not vary. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int sdk_log = -1;

/* One line of the event log, by one write. */
static void declare(const char *event, const char *id, const char *tool)
{
    static int seq;
    char line[512];
    int n = snprintf(line, sizeof line,
                     "{\"schema\":\"%s\",\"run_id\":\"%s\",\"seq\":%d,\"event_type\":\"%s\","
                     "\"source\":\"sequence\",\"tool_call_id\":\"%s\",\"tool\":\"%s\"}\n",
                     getenv("ASSAY_RUNNER_SDK_EVENT_SCHEMA"), getenv("ASSAY_RUNNER_RUN_ID"), seq++,
                     event, id, tool);
    if (sdk_log >= 0 && write(sdk_log, line, n) != n)
        exit(3);
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        exit(4);
    close(fd);
}

static void run(const char *program, const char *word)
{
    pid_t child = fork();
    int status;
    if (!child) {
        execl(program, program, word, (char *)0);
        _exit(127);
    }
    if (waitpid(child, &status, 0) != child || status)
        exit(5);
}

int main(void)
{
    const char *log = getenv("ASSAY_RUNNER_SDK_EVENT_LOG");
    struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_port = htons(9)};
    int fd, connected, loose;

    if (log)
        sdk_log = open(log, O_WRONLY | O_APPEND | O_CLOEXEC);
    inet_pton(AF_INET, "127.0.0.9", &nobody.sin_addr);

    declare("tool_call_started", "call_write", "write_file");
    mkdir("made", 0755);
    put("made/one.txt", "one\n");
    put("made/two.txt", "two\n");
    rename("made/two.txt", "made/moved.txt");
    symlink("one.txt", "made/link");
    link("made/one.txt", "made/hard");
    chmod("made/one.txt", 0600);
    truncate("made/one.txt", 2);
    declare("tool_call_completed", "call_write", "write_file");

    declare("tool_call_started", "call_read", "read_file");
    fd = open("made/link", O_RDONLY | O_CLOEXEC);
    close(fd);
    open("made/../made/absent.txt", O_RDONLY | O_CLOEXEC);
    run("/bin/cat", "made/moved.txt");
    declare("tool_call_completed", "call_read", "read_file");

    declare("tool_call_started", "call_reach", "http_get");
    connected = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connect(connected, (struct sockaddr *)&nobody, sizeof nobody);
    close(connected);
    loose = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sendto(loose, "x", 1, 0, (struct sockaddr *)&nobody, sizeof nobody);
    close(loose);
    declare("tool_call_completed", "call_reach", "http_get");

    unlink("made/hard");
    unlink("made/link");
    return 0;
}
