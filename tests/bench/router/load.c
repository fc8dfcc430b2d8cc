/* loadgen: HTTP/1.1 load for an OpenAI-shaped endpoint. One thread, epoll, no dependencies.
 *
 *   loadgen PORT [key=value ...]        prints one line of JSON
 *
 *   mode=req      closed loop, or open loop when rate>0 (Poisson; latency counted from the due time)
 *   mode=stream   each connection reads one SSE stream after another
 *   mode=hold     opens conns streams, keeps them, prints {"ready":n} when all have had a chunk, ends at
 * duration conns=N duration_ms=N warmup_ms=N (not counted) rate=R ramp_ms=N (connections start spread over
 * it) body=FILE     the request body (default: a small chat request for model=NAME)   model=mock
 * path=/v1/chat/completions key=TOKEN     adds Authorization: Bearer TOKEN chunks=N      with mode=stream: a
 * stream with another number of timed chunks counts as an error
 *
 * Latencies in microseconds: req = whole answer; ttft = request sent to first SSE event; chunk = engine's
 * send to our read (the mock engine writes CLOCK_MONOTONIC into each chunk as @@ns@@).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

typedef struct {
    uint32_t *v;
    size_t n, cap;
} vec;
static void vpush(vec *v, uint64_t ns) {
    if (v->n == v->cap) v->v = realloc(v->v, sizeof *v->v * (v->cap = v->cap ? v->cap * 2 : 65536));
    uint64_t x = ns / 100;
    v->v[v->n++] = x > 0xffffffffu ? 0xffffffffu : x; /* 0.1 us */
}
static int cmp(const void *a, const void *b) {
    uint32_t x = *(uint32_t *)a, y = *(uint32_t *)b;
    return x < y ? -1 : x > y;
}
static void vprint(const char *name, vec *v) {
    if (!v->n) return;
    qsort(v->v, v->n, sizeof *v->v, cmp);
    double s = 0;
    for (size_t i = 0; i < v->n; i++) s += v->v[i];
#define P(q) (v->v[(size_t)((v->n - 1) * (q))] / 10.0)
    printf(
        ",\"%s\":{\"n\":%zu,\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}",
        name, v->n, s / v->n / 10, P(.5), P(.9), P(.99), P(.999), P(1));
}

enum {
    CLOSED,
    CONNECTING,
    READY,
    SENDING,
    HEAD,
    BODY_LEN,
    BODY_CHUNK_SIZE,
    BODY_CHUNK,
    BODY_CHUNK_END,
    BODY_EOF
};
typedef struct {
    int fd, st, want_out, status, close_after, got_first, done_seen, nchunks;
    size_t sent;
    long left;
    uint64_t t0, due;
    int counted;
    char head[16384];
    size_t hlen;
    char *ev;
    size_t evlen, evcap;
    char ck[64];
    int cklen;
} conn;

enum { REQ, STREAM, HOLD };
static int ep, mode = REQ, nconns = 1, port;
static double rate = 0;
static long duration_ms = 3000, warmup_ms = 500, ramp_ms = 0, want_chunks = -1;
static const char *path = "/v1/chat/completions", *model = "mock", *key = NULL, *body_file = NULL;
static char *reqbuf;
static size_t reqlen;
static conn *cs;
static uint64_t t_start, t_count, t_end;
static vec v_req, v_ttft, v_chunk;
static long n_ok, n_err, n_reconn, n_chunks, n_streams, n_bytes, n_non200, n_short, n_first;
static int first_bad;
static int *idle, n_idle;
static uint64_t *queue;
static long q_head, q_tail, q_cap;

static void start(conn *c, uint64_t due);
static void ctl(conn *c, int op, int out) {
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(ep, op, c->fd, &e);
    c->want_out = out;
}
static void fail(conn *c) {
    close(c->fd);
    c->st = CLOSED;
}
static void open_conn(conn *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(c->fd, (void *)&a, sizeof a) && errno != EINPROGRESS) {
        perror("connect");
        exit(1);
    }
    ctl(c, EPOLL_CTL_ADD, 1);
}
static void push_out(conn *c) {
    while (c->sent < reqlen) {
        ssize_t w = send(c->fd, reqbuf + c->sent, reqlen - c->sent, MSG_NOSIGNAL);
        if (w < 0) {
            if (errno == EAGAIN || errno == ENOTCONN) {
                if (!c->want_out) ctl(c, EPOLL_CTL_MOD, 1);
                return;
            }
            n_err++;
            fail(c);
            return;
        }
        c->sent += w;
    }
    if (c->want_out) ctl(c, EPOLL_CTL_MOD, 0);
    if (c->st == SENDING) c->st = HEAD;
}
static void start(conn *c, uint64_t due) {
    int fresh = c->st == CLOSED;
    c->hlen = c->evlen = c->sent = c->cklen = 0;
    c->got_first = c->done_seen = c->nchunks = 0;
    c->due = due;
    c->t0 = now_ns();
    c->st = SENDING;
    if (fresh) {
        open_conn(c);
        return;
    }
    push_out(c);
}
static void next(conn *c) { /* this connection is free again */
    uint64_t now = now_ns();
    if (c->close_after) {
        close(c->fd);
        c->st = CLOSED;
        n_reconn++;
    } else
        c->st = READY;
    if (now >= t_end) return;
    if (rate > 0) {
        if (q_head < q_tail) {
            uint64_t d = queue[q_head++ % q_cap];
            start(c, d);
        } else
            idle[n_idle++] = c - cs;
        return;
    }
    if (mode != HOLD) start(c, now);
}
static void finish(conn *c) {
    uint64_t now = now_ns();
    int bad = c->status != 200;
    if (bad) {
        n_non200++;
        first_bad = first_bad ? first_bad : c->status;
    }
    if (mode != REQ && !bad) {
        if (!c->done_seen || (want_chunks >= 0 && c->nchunks != want_chunks)) {
            bad = 1;
            n_short++;
        } else
            n_streams++;
    }
    if (bad)
        n_err++;
    else if (mode == REQ && now >= t_count && now < t_end) {
        n_ok++;
        vpush(&v_req, now - (rate > 0 ? c->due : c->t0));
    }
    next(c);
}
static void event(conn *c, const char *e, size_t n, uint64_t now) {
    if (n < 6 || memcmp(e, "data:", 5)) return;
    if (!c->got_first) {
        c->got_first = 1;
        n_first++;
        if (now >= t_count) vpush(&v_ttft, now - c->t0);
    }
    if (n >= 12 && !memcmp(e, "data: [DONE]", 12)) {
        c->done_seen = 1;
        return;
    }
    const char *p = memmem(e, n, "@@", 2);
    if (!p) return;
    c->nchunks++;
    if (now < t_count || now >= t_end) return;
    uint64_t t = strtoull(p + 2, NULL, 10);
    n_chunks++;
    if (now > t) vpush(&v_chunk, now - t);
}
static void body(conn *c, const char *p, size_t n, uint64_t now) {
    if (now >= t_count && now < t_end) n_bytes += n;
    if (mode == REQ) return;
    if (c->evlen + n > c->evcap) c->ev = realloc(c->ev, c->evcap = (c->evlen + n) * 2);
    memcpy(c->ev + c->evlen, p, n);
    c->evlen += n;
    char *s = c->ev, *end = c->ev + c->evlen, *q;
    while ((q = memmem(s, end - s, "\n\n", 2)) || (q = memmem(s, end - s, "\r\n\r\n", 4))) {
        event(c, s, q - s, now);
        s = q + (*q == '\r' ? 4 : 2);
    }
    memmove(c->ev, s, end - s);
    c->evlen = end - s;
}
static int parse(conn *c, const char *p, size_t n, uint64_t now) { /* -1: close */
    while (n) {
        if (c->st == HEAD || c->st == SENDING) {
            size_t take = n < sizeof c->head - 1 - c->hlen ? n : sizeof c->head - 1 - c->hlen, old = c->hlen;
            memcpy(c->head + c->hlen, p, take);
            c->hlen += take;
            c->head[c->hlen] = 0;
            char *e = strstr(c->head + (old > 3 ? old - 3 : 0), "\r\n\r\n");
            if (!e) {
                if (c->hlen == sizeof c->head - 1) return -1;
                return 0;
            }
            size_t used = (e + 4 - c->head) - old;
            p += used;
            n -= used;
            e[2] = 0;
            c->status = atoi(c->head + 9);
            c->close_after = 0;
            if (c->status == 100) {
                c->hlen = 0;
                continue;
            }
            long clen = -1;
            int chunked = 0;
            for (char *l = strstr(c->head, "\r\n"); l; l = strstr(l + 2, "\r\n")) {
                if (!strncasecmp(l + 2, "content-length:", 15))
                    clen = atol(l + 17);
                else if (!strncasecmp(l + 2, "transfer-encoding:", 18))
                    chunked = !!strcasestr(l + 20, "chunked");
                else if (!strncasecmp(l + 2, "connection:", 11) &&
                         !strncasecmp(l + 13 + strspn(l + 13, " "), "close", 5))
                    c->close_after = 1;
            }
            c->st = chunked ? BODY_CHUNK_SIZE : clen >= 0 ? BODY_LEN : BODY_EOF;
            c->left = clen;
            c->cklen = 0;
            if (c->st == BODY_EOF) c->close_after = 1;
            if (c->st == BODY_LEN && !clen) {
                finish(c);
                return 0;
            }
        } else if (c->st == BODY_LEN || c->st == BODY_CHUNK) {
            size_t k = n < (size_t)c->left ? n : (size_t)c->left;
            body(c, p, k, now);
            p += k;
            n -= k;
            c->left -= k;
            if (!c->left) {
                if (c->st == BODY_LEN) {
                    finish(c);
                    return 0;
                }
                c->st = BODY_CHUNK_END;
                c->left = 2;
            }
        } else if (c->st == BODY_CHUNK_END) {
            size_t k = n < (size_t)c->left ? n : (size_t)c->left;
            p += k;
            n -= k;
            c->left -= k;
            if (!c->left) {
                c->st = BODY_CHUNK_SIZE;
                c->cklen = 0;
            }
        } else if (c->st == BODY_CHUNK_SIZE) {
            c->ck[c->cklen++] = *p;
            p++;
            n--;
            if (c->cklen >= 60) return -1;
            if (c->cklen >= 2 && c->ck[c->cklen - 1] == '\n') {
                c->left = strtol(c->ck, NULL, 16);
                if (c->left)
                    c->st = BODY_CHUNK;
                else if (c->cklen > 2 && c->ck[0] == '0') {
                    c->cklen = 0;
                    c->ck[0] = 0;
                    c->st = BODY_CHUNK_SIZE;
                    c->left = -7;
                    c->ck[62] = 1;
                }
                if (!c->left || c->left == -7) c->cklen = 0;
                if (c->st == BODY_CHUNK_SIZE) { /* 0-size chunk: expect the final CRLF */
                    if (n >= 2 && p[0] == '\r' && p[1] == '\n') {
                        finish(c);
                        return 0;
                    }
                    c->left = 2;
                    c->st = BODY_EOF;
                    c->status |= 0x10000;
                    if (n) continue;
                    return 0;
                }
            }
        } else if (c->st == BODY_EOF) {
            if (c->status & 0x10000) { /* rest of the final CRLF */
                size_t k = n < (size_t)c->left ? n : (size_t)c->left;
                p += k;
                n -= k;
                c->left -= k;
                if (!c->left) {
                    c->status &= 0xffff;
                    finish(c);
                    return 0;
                }
            } else {
                body(c, p, n, now);
                n = 0;
            }
        } else
            return 0;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: loadgen PORT [key=value ...]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    port = atoi(argv[1]);
    for (int i = 2; i < argc; i++) {
        char *v = strchr(argv[i], '=');
        if (!v) continue;
        *v++ = 0;
        if (!strcmp(argv[i], "mode"))
            mode = !strcmp(v, "stream") ? STREAM : !strcmp(v, "hold") ? HOLD : REQ;
        else if (!strcmp(argv[i], "conns"))
            nconns = atoi(v);
        else if (!strcmp(argv[i], "duration_ms"))
            duration_ms = atol(v);
        else if (!strcmp(argv[i], "warmup_ms"))
            warmup_ms = atol(v);
        else if (!strcmp(argv[i], "ramp_ms"))
            ramp_ms = atol(v);
        else if (!strcmp(argv[i], "rate"))
            rate = atof(v);
        else if (!strcmp(argv[i], "chunks"))
            want_chunks = atol(v);
        else if (!strcmp(argv[i], "model"))
            model = v;
        else if (!strcmp(argv[i], "path"))
            path = v;
        else if (!strcmp(argv[i], "key"))
            key = v;
        else if (!strcmp(argv[i], "body"))
            body_file = v;
        else {
            fprintf(stderr, "unknown %s\n", argv[i]);
            return 2;
        }
    }
    char *b;
    size_t bl;
    if (body_file) {
        FILE *f = fopen(body_file, "rb");
        if (!f) {
            perror(body_file);
            return 1;
        }
        struct stat s;
        fstat(fileno(f), &s);
        b = malloc(s.st_size);
        bl = fread(b, 1, s.st_size, f);
        fclose(f);
    } else {
        b = malloc(4096);
        bl = snprintf(b, 4096,
                      "{\"model\":\"%s\",%s\"max_tokens\":128,\"temperature\":0.7,\"messages\":[{\"role\":"
                      "\"system\",\"content\":\"You are a helpful assistant.\"},"
                      "{\"role\":\"user\",\"content\":\"Write a short note about the history of the "
                      "lighthouse, its keepers, and the sea around it.\"}]}",
                      model,
                      mode == REQ ? "" : "\"stream\":true,\"stream_options\":{\"include_usage\":true},");
    }
    reqbuf = malloc(bl + 2048);
    reqlen = sprintf(reqbuf,
                     "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: loadgen\r\nAccept: "
                     "*/*\r\nContent-Type: application/json\r\n%s%s%sContent-Length: %zu\r\n\r\n",
                     path, port, key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "", bl);
    memcpy(reqbuf + reqlen, b, bl);
    reqlen += bl;
    ep = epoll_create1(0);
    cs = calloc(nconns, sizeof *cs);
    idle = malloc(sizeof *idle * nconns);
    q_cap = 1 << 20;
    queue = malloc(sizeof *queue * q_cap);
    t_start = now_ns();
    t_count = t_start + (warmup_ms + ramp_ms) * 1000000ull;
    t_end = t_count + duration_ms * 1000000ull;
    srand48(7);
    uint64_t due = t_start + ramp_ms * 1000000ull;
    long started = 0, max_q = 0;
    int said = 0;
    if (rate > 0)
        for (int i = 0; i < nconns; i++) { idle[n_idle++] = i; }
    struct epoll_event ev[1024];
    static char buf[262144];
    for (;;) {
        uint64_t now = now_ns();
        if (now >= t_end) break;
        if (rate > 0) {
            while (due <= now) {
                queue[q_tail++ % q_cap] = due;
                due += (uint64_t)(-log(1 - drand48()) / rate * 1e9);
            }
            while (n_idle && q_head < q_tail) {
                conn *c = &cs[idle[--n_idle]];
                start(c, queue[q_head++ % q_cap]);
            }
            if (q_tail - q_head > max_q) max_q = q_tail - q_head;
        } else {
            while (started < nconns && now >= t_start + (uint64_t)(ramp_ms * 1000000.0 * started / nconns))
                start(&cs[started++], now);
        }
        if (mode == HOLD && !said && n_first >= nconns) {
            said = 1;
            printf("{\"ready\":%d}\n", nconns);
            fflush(stdout);
        }
        uint64_t until = rate > 0 && due < t_end ? due : t_end;
        if (!(rate > 0) && started < nconns && until > now + 200000) until = now + 200000;
        uint64_t d = until > now ? until - now : 0;
        struct timespec ts = {d / 1000000000ull, d % 1000000000ull};
        int n = syscall(SYS_epoll_pwait2, ep, ev, 1024, &ts, NULL, 0);
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (c->st == CLOSED) continue;
            if (ev[i].events & EPOLLOUT) push_out(c);
            if (c->st == CLOSED || !(ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
            ssize_t r = recv(c->fd, buf, sizeof buf, 0);
            uint64_t t = now_ns();
            if (r < 0 && errno == EAGAIN) continue;
            if (r <= 0) {
                if (c->st == BODY_EOF && r == 0) {
                    c->close_after = 1;
                    finish(c);
                    continue;
                }
                if (c->st != READY) n_err++;
                int was = c->st;
                fail(c);
                n_reconn++;
                if (rate > 0) {
                    if (was != READY) idle[n_idle++] = c - cs;
                } else if (mode != HOLD && t < t_end && n_err < 100000)
                    start(c, t);
                continue;
            }
            if (parse(c, buf, r, t) < 0) {
                n_err++;
                fail(c);
                if (rate > 0)
                    idle[n_idle++] = c - cs;
                else
                    start(c, t);
            }
        }
    }
    struct rusage ru;
    getrusage(RUSAGE_SELF, &ru);
    double secs = duration_ms / 1000.0;
    printf("{\"secs\":%.3f,\"ok\":%ld,\"rps\":%.1f,\"errors\":%ld,\"non200\":%ld,\"first_bad\":%d,\"short\":%"
           "ld,\"first\":%ld,\"reconnects\":%ld,\"streams\":%ld,\"chunks\":%ld,\"chunks_s\":%.1f,\"mb_s\":%.2f,\"max_"
           "queue\":%ld,\"cpu_s\":%.3f",
           secs, n_ok, n_ok / secs, n_err, n_non200, first_bad, n_short, n_first, n_reconn, n_streams, n_chunks,
           n_chunks / secs, n_bytes / secs / 1e6, max_q,
           ru.ru_utime.tv_sec + ru.ru_utime.tv_usec / 1e6 + ru.ru_stime.tv_sec + ru.ru_stime.tv_usec / 1e6);
    vprint("req_us", &v_req);
    vprint("ttft_us", &v_ttft);
    vprint("chunk_us", &v_chunk);
    printf("}\n");
    return 0;
}
