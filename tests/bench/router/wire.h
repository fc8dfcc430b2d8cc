/* What the bench's engine and load have in common: the clock, the limit of files, sockets that wait for nobody. */
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000ull

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

/* Waits for events or until a time; in nanoseconds, since a millisecond is a long time here (epoll_pwait2(2)). */
static inline int wait_events(int epoll, struct epoll_event *events, int count, uint64_t until_ns) {
    uint64_t now = now_ns(), left = until_ns > now ? until_ns - now : 0;
    struct timespec timeout = {left / NS_PER_S, left % NS_PER_S};
    return syscall(SYS_epoll_pwait2, epoll, events, count, &timeout, NULL, 0);
}

static inline void allow_many_files(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static inline void send_at_once(int socket) {
    int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static inline struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static inline void *or_die(void *memory) {
    if (!memory) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    return memory;
}
