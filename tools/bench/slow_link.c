/* A TCP proxy that adds latency and limits each connection, in front of a server on this machine.

   slow_link PORT SERVER_PORT RTT_MS MBYTES_PER_S [STALL]

   Every byte is handed on half of RTT_MS after it came, in both directions, the first of a connection a whole RTT_MS
   later, as a handshake takes that; from the server MBYTES_PER_S (10^6 bytes; 0: all it can) for each connection. That share
   of requests, STALL, is handed on 10 s late. On SIGUSR1 it says on stdout how many connections and requests it had, and the bytes that it has sent to clients. One thread, epoll. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHUNK 65536
#define MOST_QUEUED (48 << 20)

struct piece { struct piece *next; double due; int size, sent; char data[CHUNK]; };

struct side {                      /* bytes that come from `fd` and go to `peer->fd` */
    int fd, ended, closed_peer, watching;
    struct side *peer;
    struct piece *head, *tail;
    size_t queued;
    double last_due, extra;
    struct side *next_all;
    int to_client, dead;
};

static struct side *all;
static int poll_fd;
static double delay, rate, stall;
static long connections, requests, sent_bytes;
static struct piece *spare;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void watch(struct side *s, int in) {
    struct epoll_event e = {.events = in ? EPOLLIN | EPOLLRDHUP : 0, .data.ptr = s};
    if (s->watching != in) epoll_ctl(poll_fd, EPOLL_CTL_MOD, s->fd, &e);
    s->watching = in;
}

static void drop(struct side *s) {
    if (s->dead) return;
    s->dead = s->peer->dead = 1;
    close(s->fd);
    close(s->peer->fd);
}

static void take(struct side *s) {
    for (int n = 0; n < 8 && !s->ended && s->queued < MOST_QUEUED; n++) {
        struct piece *p = spare;
        if (p) spare = p->next; else p = malloc(sizeof *p);
        ssize_t got = read(s->fd, p->data, CHUNK);
        if (got <= 0) {
            p->next = spare; spare = p;
            if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
            if (got < 0) { drop(s); return; }
            s->ended = 1;
            watch(s, 0);
            return;
        }
        double due = now() + delay + s->extra;
        if (!s->to_client && (!memcmp(p->data, "GET ", 4) || !memcmp(p->data, "HEAD", 4))) {
            requests++;
            if (stall > 0 && drand48() < stall) due += 10;
        }
        if (s->to_client && rate > 0) {
            if (due < s->last_due) due = s->last_due;
            s->last_due = due + got / rate;
        }
        p->due = due; p->size = got; p->sent = 0; p->next = NULL;
        if (s->tail) s->tail->next = p; else s->head = p;
        s->tail = p;
        s->queued += got;
    }
    if (!s->ended) watch(s, s->queued < MOST_QUEUED);
}

static double give(struct side *s, double at) {  /* hand on what is due; when to come again */
    struct piece *p;
    while ((p = s->head) && p->due <= at) {
        ssize_t put = send(s->peer->fd, p->data + p->sent, p->size - p->sent, MSG_NOSIGNAL);
        if (put < 0) {
            if (errno == EAGAIN || errno == EINTR) return at + 0.0005;
            drop(s);
            return at + 10;
        }
        p->sent += put; s->queued -= put;
        if (s->to_client) sent_bytes += put;
        if (p->sent < p->size) return at + 0.0002;
        s->head = p->next;
        if (!s->head) s->tail = NULL;
        s->extra = 0;
        p->next = spare; spare = p;
    }
    if (!s->ended && !s->watching && s->queued < MOST_QUEUED) watch(s, 1);
    if (!s->head && s->ended && !s->closed_peer) { shutdown(s->peer->fd, SHUT_WR); s->closed_peer = 1; }
    if (s->closed_peer && s->peer->closed_peer) drop(s);
    return s->head ? s->head->due : at + 10;
}

static struct side *add(int fd, int to_client) {
    struct side *s = calloc(1, sizeof *s);
    int yes = 1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    s->fd = fd; s->to_client = to_client; s->watching = 1;
    s->next_all = all; all = s;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = s};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &e);
    return s;
}

static int local(int port, int serve) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (serve) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (serve ? bind(fd, (void *)&a, sizeof a) || listen(fd, 1024) : connect(fd, (void *)&a, sizeof a)) {
        if (serve) { perror("slow_link"); exit(1); }
        close(fd);
        return -1;
    }
    return fd;
}

int main(int argc, char **argv) {
    if (argc < 5) { fprintf(stderr, "usage: slow_link PORT SERVER_PORT RTT_MS MBYTES_PER_S [STALL]\n"); return 2; }
    delay = atof(argv[3]) / 2000; rate = atof(argv[4]) * 1e6; stall = argc > 5 ? atof(argv[5]) : 0;
    srand48(17);  /* else the first two requests stall, whatever the share */
    poll_fd = epoll_create1(0);
    int door = local(atoi(argv[1]), 1);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, ready[256];
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, door, &e);
    sigset_t usr; sigemptyset(&usr); sigaddset(&usr, SIGUSR1); sigprocmask(SIG_BLOCK, &usr, NULL);
    int told = signalfd(-1, &usr, SFD_NONBLOCK);
    static struct side tell;
    e.data.ptr = &tell;
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, told, &e);
    double next = now();
    for (;;) {
        double wait = next - now();
        int n = epoll_wait(poll_fd, ready, 256, wait <= 0 ? 0 : wait > 1 ? 1000 : (int)(wait * 1000 + 0.999));
        for (int i = 0; i < n; i++) {
            struct side *s = ready[i].data.ptr;
            if (s == &tell) {
                struct signalfd_siginfo info;
                if (read(told, &info, sizeof info) > 0) { printf("%ld %ld %ld\n", connections, requests, sent_bytes); fflush(stdout); }
            } else if (s) {
                if (!s->dead) take(s);
            } else {
                int client = accept(door, NULL, NULL), server = client < 0 ? -1 : local(atoi(argv[2]), 0);
                if (server < 0) { if (client >= 0) close(client); continue; }
                struct side *a = add(client, 0), *b = add(server, 1);
                a->peer = b; b->peer = a; a->extra = 2 * delay; connections++;
            }
        }
        double at = now();
        next = at + 1;
        for (struct side *s = all; s; s = s->next_all)
            if (!s->dead) { double due = give(s, at); if (due < next) next = due; }
        for (struct side **p = &all; *p;) {
            struct side *s = *p;
            if (s->dead) {
                *p = s->next_all;
                while (s->head) { struct piece *q = s->head; s->head = q->next; q->next = spare; spare = q; }
                free(s);
            } else p = &s->next_all;
        }
    }
}
