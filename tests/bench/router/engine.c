/* mockengine: an OpenAI-shaped engine for benchmarks. One thread, epoll, no dependencies.
 *
 *   mockengine PORT [key=value ...]
 *
 * Settings (also changeable while it runs: GET /_set?key=value&key=value; new requests use the new ones):
 *   delay_us   wait before a non-stream answer, or before a stream's first chunk (0)
 *   chunks     data chunks in a stream (100)
 *   gap_us     time between a stream's chunks; 0 = as fast as the socket takes them (0)
 *   size       bytes of one SSE event, at least 230 (250)
 *   burst      1 = all streams emit at the same instants, as an engine's decode steps do; 0 = spread (0)
 * GET /_counts  {"requests","active","finished","aborted","last_abort_ns","chunks"}
 *   aborted: streams whose peer closed before the last chunk; last_abort_ns: CLOCK_MONOTONIC.
 * Each chunk's text holds @@<CLOCK_MONOTONIC ns at send>@@ so that a reader on this machine gets one-way
 * latency. One chunk is one HTTP chunk and one send(), as an engine's server does it.
 */
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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long cfg_delay_us = 0, cfg_chunks = 100, cfg_gap_us = 0, cfg_size = 250, cfg_burst = 0;
static long st_requests, st_active, st_finished, st_aborted, st_chunks;
static uint64_t st_last_abort;

enum { IDLE, WAIT_REPLY, STREAMING };
typedef struct conn {
    int fd, state, want_out, heap_i, fast_i, closing;
    char *in;
    size_t in_len, in_cap;
    char *out;
    size_t out_off, out_len, out_cap;
    int head_len, chunked, sent_continue;
    long clen;     /* of the request being read; head_len 0 = head not seen */
    size_t ck_pos; /* scan position in a chunked request body */
    long left, gap_us, size;
    uint64_t next_ns;
} conn;

static int ep;
static conn **heap;
static int heap_n, heap_cap;
static conn **fast;
static int fast_n, fast_cap;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* ---- timer heap ---- */
static void hswap(int a, int b) {
    conn *t = heap[a];
    heap[a] = heap[b];
    heap[b] = t;
    heap[a]->heap_i = a;
    heap[b]->heap_i = b;
}
static void hup(int i) {
    while (i && heap[i]->next_ns < heap[(i - 1) / 2]->next_ns) {
        hswap(i, (i - 1) / 2);
        i = (i - 1) / 2;
    }
}
static void hdown(int i) {
    for (;;) {
        int l = 2 * i + 1, m = i;
        if (l < heap_n && heap[l]->next_ns < heap[m]->next_ns) m = l;
        if (l + 1 < heap_n && heap[l + 1]->next_ns < heap[m]->next_ns) m = l + 1;
        if (m == i) return;
        hswap(i, m);
        i = m;
    }
}
static void hpush(conn *c) {
    if (heap_n == heap_cap) heap = realloc(heap, sizeof *heap * (heap_cap = heap_cap ? heap_cap * 2 : 1024));
    heap[heap_n] = c;
    c->heap_i = heap_n;
    hup(heap_n++);
}
static void hremove(conn *c) {
    int i = c->heap_i;
    if (i < 0) return;
    heap_n--;
    if (i != heap_n) {
        heap[i] = heap[heap_n];
        heap[i]->heap_i = i;
        hup(i);
        hdown(heap[i]->heap_i == i ? i : heap[i]->heap_i);
    }
    c->heap_i = -1;
}
static void fpush(conn *c) {
    if (c->fast_i >= 0) return;
    if (fast_n == fast_cap) fast = realloc(fast, sizeof *fast * (fast_cap = fast_cap ? fast_cap * 2 : 1024));
    fast[fast_n] = c;
    c->fast_i = fast_n++;
}
static void fremove(conn *c) {
    if (c->fast_i < 0) return;
    fast[c->fast_i] = fast[--fast_n];
    fast[c->fast_i]->fast_i = c->fast_i;
    c->fast_i = -1;
}

static void drop(conn *c) {
    if (c->state == STREAMING) {
        st_aborted++;
        st_active--;
        st_last_abort = now_ns();
    } else if (c->state == WAIT_REPLY) {
        st_aborted++;
        st_last_abort = now_ns();
    }
    hremove(c);
    fremove(c);
    close(c->fd);
    free(c->in);
    free(c->out);
    c->fd = -1;
    free(c);
}
static void arm(conn *c, int out) {
    if (c->want_out == out) return;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
    c->want_out = out;
}
/* 0 ok (maybe queued), -1 dead */
static int put(conn *c, const char *p, size_t n) {
    if (c->out_len == c->out_off) {
        ssize_t w = send(c->fd, p, n, MSG_NOSIGNAL);
        if (w == (ssize_t)n) return 0;
        if (w < 0) {
            if (errno != EAGAIN) return -1;
            w = 0;
        }
        p += w;
        n -= w;
        c->out_off = c->out_len = 0;
    }
    if (c->out_len + n > c->out_cap) c->out = realloc(c->out, c->out_cap = (c->out_len + n) * 2);
    memcpy(c->out + c->out_len, p, n);
    c->out_len += n;
    arm(c, 1);
    return 0;
}

static const char REPLY[] = "{\"id\":\"chatcmpl-6f0d3c1f0a5d4a0d9be0e5a7d8a6b001\",\"object\":\"chat."
                            "completion\",\"created\":1700000000,\"model\":\"mock\","
                            "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The "
                            "quick brown fox jumps over the lazy dog, then "
                            "sits down in the long grass beside the river to consider how many words make "
                            "six hundred bytes of answer; it turns out that "
                            "the number is rather "
                            "small.\",\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,\"finish_"
                            "reason\":\"stop\",\"stop_reason\":null}],"
                            "\"usage\":{\"prompt_tokens\":42,\"total_tokens\":106,\"completion_tokens\":64,"
                            "\"prompt_tokens_details\":null}}";

static int reply(conn *c, const char *status, const char *body) {
    char b[4096];
    int n = snprintf(b, sizeof b,
                     "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status,
                     strlen(body), body);
    return put(c, b, n);
}

/* one chunk of a stream; returns -1 dead, 1 stream finished, 0 more */
static int emit(conn *c, uint64_t now) {
    char ev[8192], b[8300];
    int n;
    if (c->left > 0) {
        static const char pad[] = "the quick brown fox jumps over the lazy dog and then the lazy dog sleeps "
                                  "on for hours and hours more";
        int base = snprintf(ev, sizeof ev,
                            "data: "
                            "{\"id\":\"chatcmpl-6f0d3c1f0a5d4a0d9be0e5a7\",\"object\":\"chat.completion."
                            "chunk\",\"created\":1700000000,\"model\":\"mock\","
                            "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"@@%llu@@",
                            (unsigned long long)now);
        static const char tail[] = "\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
        long want = c->size - base - (long)(sizeof tail - 1);
        while (want > 0 && base < 8000) {
            int k = want < (long)sizeof pad - 1 ? want : (long)sizeof pad - 1;
            memcpy(ev + base, pad, k);
            base += k;
            want -= k;
        }
        memcpy(ev + base, tail, sizeof tail);
        n = base + sizeof tail - 1;
        c->left--;
        st_chunks++;
        int m = snprintf(b, sizeof b, "%x\r\n", n);
        memcpy(b + m, ev, n);
        m += n;
        memcpy(b + m, "\r\n", 2);
        m += 2;
        return put(c, b, m) < 0 ? -1 : 0;
    }
    /* the end: finish reason, usage, [DONE], last chunk */
    n = snprintf(ev, sizeof ev,
                 "data: "
                 "{\"id\":\"chatcmpl-6f0d3c1f0a5d4a0d9be0e5a7\",\"object\":\"chat.completion.chunk\","
                 "\"created\":1700000000,\"model\":\"mock\","
                 "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"
                 "data: "
                 "{\"id\":\"chatcmpl-6f0d3c1f0a5d4a0d9be0e5a7\",\"object\":\"chat.completion.chunk\","
                 "\"created\":1700000000,\"model\":\"mock\","
                 "\"choices\":[],\"usage\":{\"prompt_tokens\":42,\"total_tokens\":106,\"completion_tokens\":"
                 "64}}\n\ndata: [DONE]\n\n");
    int m = snprintf(b, sizeof b, "%x\r\n%s\r\n0\r\n\r\n", n, ev);
    st_finished++;
    st_active--;
    c->state = IDLE;
    return put(c, b, m) < 0 ? -1 : 1;
}

static int has_stream_true(const char *b, size_t n) {
    const char *p = b, *e = b + n;
    size_t part = 65536;
    for (int pass = 0; pass < 2; pass++) {
        const char *q = pass ? (n > part ? e - part : e) : b, *qe = pass ? e : (n > part ? b + part : e);
        while ((p = memmem(q, qe - q, "\"stream\"", 8))) {
            q = p + 8;
            p = q;
            while (p < e && (*p == ' ' || *p == ':')) p++;
            if (p < e && *p == 't') return 1;
        }
    }
    return 0;
}

static void set_cfg(const char *k, long v) {
    if (!strcmp(k, "delay_us"))
        cfg_delay_us = v;
    else if (!strcmp(k, "chunks"))
        cfg_chunks = v;
    else if (!strcmp(k, "gap_us"))
        cfg_gap_us = v;
    else if (!strcmp(k, "size"))
        cfg_size = v;
    else if (!strcmp(k, "burst"))
        cfg_burst = v;
}

static int begin_stream(conn *c) {
    static const char h[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; "
                            "charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
    c->state = STREAMING;
    return put(c, h, sizeof h - 1);
}

static int handle(conn *c, const char *body, size_t blen) {
    char method[8], path[512];
    path[0] = 0;
    sscanf(c->in, "%7s %511s", method, path);
    if (!strncmp(path, "/_set", 5)) {
        char *q = strchr(path, '?');
        for (char *t = q ? strtok(q + 1, "&") : NULL; t; t = strtok(NULL, "&")) {
            char *eq = strchr(t, '=');
            if (eq) {
                *eq = 0;
                set_cfg(t, atol(eq + 1));
            }
        }
        return reply(c, "200 OK", "{}");
    }
    if (!strncmp(path, "/_counts", 7)) {
        char b[400];
        snprintf(b, sizeof b,
                 "{\"requests\":%ld,\"active\":%ld,\"finished\":%ld,\"aborted\":%ld,\"last_abort_ns\":%llu,"
                 "\"chunks\":%ld,\"now_ns\":%llu}",
                 st_requests, st_active, st_finished, st_aborted, (unsigned long long)st_last_abort,
                 st_chunks, (unsigned long long)now_ns());
        return reply(c, "200 OK", b);
    }
    if (!strcmp(method, "POST") && (strstr(path, "completions") || !strcmp(path, "/generate"))) {
        st_requests++;
        int stream = has_stream_true(body, blen);
        uint64_t now = now_ns();
        c->left = stream ? cfg_chunks : -1;
        c->gap_us = cfg_gap_us;
        c->size = cfg_size;
        if (stream) {
            st_active++;
            if (begin_stream(c) < 0) return -1;
            if (c->gap_us || cfg_delay_us) {
                c->next_ns = now + cfg_delay_us * 1000;
                if (cfg_burst && c->gap_us) {
                    uint64_t g = c->gap_us * 1000;
                    c->next_ns = (c->next_ns / g + 1) * g;
                }
                hpush(c);
            } else
                fpush(c);
            return 0;
        }
        if (!cfg_delay_us) return reply(c, "200 OK", REPLY);
        c->state = WAIT_REPLY;
        c->next_ns = now + cfg_delay_us * 1000;
        hpush(c);
        return 0;
    }
    if (strstr(path, "/v1/models"))
        return reply(c, "200 OK",
                     "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":"
                     "1700000000,\"owned_by\":\"mock\",\"root\":\"mock\",\"max_model_len\":32768}]}");
    if (strstr(path, "model_info"))
        return reply(c, "200 OK",
                     "{\"model_path\":\"mock\",\"tokenizer_path\":\"mock\",\"is_generation\":true,\"served_"
                     "model_name\":\"mock\"}");
    if (strstr(path, "server_info"))
        return reply(c, "200 OK",
                     "{\"model_path\":\"mock\",\"served_model_name\":\"mock\",\"model_id\":\"mock\",\"tp_"
                     "size\":1,\"dp_size\":1,\"version\":\"0.5.0\",\"max_total_num_tokens\":100000,\"load_"
                     "balance_method\":\"round_robin\",\"disaggregation_mode\":\"null\"}");
    if (strstr(path, "health") || strstr(path, "/ping") || strstr(path, "/version"))
        return reply(c, "200 OK", "{\"version\":\"0.11.0\"}");
    if (strstr(path, "/metrics")) return reply(c, "200 OK", "");
    return reply(c, "404 Not Found", "{\"error\":\"not found\"}");
}

/* parse what is buffered; -1 dead */
static int feed(conn *c) {
    while (c->state == IDLE) {
        if (!c->head_len) {
            char *e = c->in_len >= 4 ? memmem(c->in, c->in_len, "\r\n\r\n", 4) : NULL;
            if (!e) return 0;
            c->head_len = e + 4 - c->in;
            c->clen = 0;
            c->chunked = 0;
            c->sent_continue = 0;
            e[2] = 0;
            char *p;
            for (p = strstr(c->in, "\r\n"); p; p = strstr(p + 2, "\r\n")) {
                if (!strncasecmp(p + 2, "content-length:", 15))
                    c->clen = atol(p + 17);
                else if (!strncasecmp(p + 2, "transfer-encoding:", 18) && strcasestr(p + 20, "chunked"))
                    c->chunked = 1;
                else if (!strncasecmp(p + 2, "expect:", 7)) {
                    if (put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25) < 0) return -1;
                }
            }
            e[2] = '\r';
            c->ck_pos = c->head_len;
        }
        size_t used;
        const char *body = c->in + c->head_len;
        size_t blen;
        if (c->chunked) {
            for (;;) {
                char *l = c->ck_pos < c->in_len ? memmem(c->in + c->ck_pos, c->in_len - c->ck_pos, "\r\n", 2)
                                                : NULL;
                if (!l) return 0;
                size_t n = strtoul(c->in + c->ck_pos, NULL, 16), end = (l - c->in) + 2 + n + 2;
                if (end > c->in_len) return 0;
                c->ck_pos = end;
                if (!n) break;
            }
            used = c->ck_pos;
            blen = used - c->head_len;
        } else {
            if (c->in_len < (size_t)c->head_len + c->clen) return 0;
            blen = c->clen;
            used = c->head_len + c->clen;
        }
        c->in[c->in_len] = 0;
        char *e = c->in + c->head_len - 2;
        char k = *e;
        *e = 0;
        if (handle(c, body, blen) < 0) return -1;
        *e = k;
        memmove(c->in, c->in + used, c->in_len - used);
        c->in_len -= used;
        c->head_len = 0;
        if (c->in_cap > (1 << 20) && c->in_len == 0) {
            free(c->in);
            c->in = malloc(c->in_cap = 8192);
        }
        if (!c->in_len) return 0;
    }
    return 0;
}

static int on_read(conn *c) {
    for (;;) {
        if (c->in_len + 4096 > c->in_cap)
            c->in = realloc(c->in, c->in_cap = c->in_cap < 8192 ? 8192 : c->in_cap * 2);
        size_t room = c->in_cap - c->in_len - 1;
        ssize_t n = recv(c->fd, c->in + c->in_len, room, 0);
        if (n == 0) return -1;
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        c->in_len += n;
        if (feed(c) < 0) return -1;
        if ((size_t)n < room) return 0;
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: mockengine PORT [key=value ...]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    for (int i = 2; i < argc; i++) {
        char *eq = strchr(argv[i], '=');
        if (eq) {
            *eq = 0;
            set_cfg(argv[i], atol(eq + 1));
        }
    }
    int ls = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(ls, (void *)&a, sizeof a) || listen(ls, 4096)) {
        perror("listen");
        return 1;
    }
    socklen_t al = sizeof a;
    getsockname(ls, (void *)&a, &al);
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    ep = epoll_create1(0);
    struct epoll_event le = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(ep, EPOLL_CTL_ADD, ls, &le);
    struct epoll_event ev[512];
    for (;;) {
        struct timespec ts = {1, 0};
        if (fast_n)
            ts = (struct timespec){0, 0};
        else if (heap_n) {
            uint64_t now = now_ns(), t = heap[0]->next_ns;
            uint64_t d = t > now ? t - now : 0;
            ts.tv_sec = d / 1000000000ull;
            ts.tv_nsec = d % 1000000000ull;
        }
        int n = syscall(SYS_epoll_pwait2, ep, ev, 512, &ts, NULL, 0);
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (!c) {
                int fd;
                while ((fd = accept4(ls, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    c = calloc(1, sizeof *c);
                    c->fd = fd;
                    c->heap_i = c->fast_i = -1;
                    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
                    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
                }
                continue;
            }
            int dead = 0;
            if (ev[i].events & (EPOLLERR | EPOLLHUP)) dead = 1;
            if (!dead && (ev[i].events & EPOLLOUT)) {
                ssize_t w = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
                if (w < 0 && errno != EAGAIN) dead = 1;
                if (w > 0) c->out_off += w;
                if (!dead && c->out_off == c->out_len) {
                    c->out_off = c->out_len = 0;
                    arm(c, 0);
                    if (c->state == STREAMING && !c->gap_us && c->heap_i < 0) fpush(c);
                }
            }
            if (!dead && (ev[i].events & (EPOLLIN | EPOLLRDHUP))) dead = on_read(c) < 0;
            if (dead) drop(c);
        }
        uint64_t now = now_ns();
        while (heap_n && heap[0]->next_ns <= now) {
            conn *c = heap[0];
            hremove(c);
            if (c->state == WAIT_REPLY) {
                c->state = IDLE;
                if (reply(c, "200 OK", REPLY) < 0 || feed(c) < 0) drop(c);
                continue;
            }
            if (!c->gap_us) {
                fpush(c);
                continue;
            }
            int r = emit(c, now_ns());
            if (r < 0) {
                drop(c);
                continue;
            }
            if (r == 1) {
                if (feed(c) < 0) drop(c);
                continue;
            }
            c->next_ns += c->gap_us * 1000;
            hpush(c);
            if ((now & 1023) == 0) now = now_ns();
        }
        for (int i = fast_n - 1; i >= 0; i--) {
            if (i >= fast_n) continue;
            conn *c = fast[i];
            int r = emit(c, now_ns());
            if (r < 0) {
                drop(c);
                continue;
            }
            if (r == 1) {
                fremove(c);
                if (feed(c) < 0) drop(c);
                continue;
            }
            if (c->want_out) fremove(c);
        }
    }
}
