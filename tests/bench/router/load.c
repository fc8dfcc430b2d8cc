/* Load on an endpoint in OpenAI's shape, for the bench: one thread, many connections, one line of JSON at the end.
 *
 *   load PORT [name=value …]
 *
 *   mode=req        each connection sends one request after the other; with rate=R, R a second in all, at random
 *                   times (Poisson), and latency counts from when a request was due
 *   mode=stream     each connection reads one stream after the other
 *   mode=hold       each connection opens one stream and keeps it
 *   conns=N  ramp_ms=N (connections begin spread over it)  warmup_ms=N (not counted)  duration_ms=N (counted)
 *   path=  model=  key=TOKEN (Authorization: Bearer)  body=FILE (instead of a small chat request)
 *   chunks=N        a stream with another number of chunks is short
 *
 * Latencies are in microseconds: req_us of whole answers; chunk_us from the engine's send, which stands in the chunk
 * as @@NANOSECONDS@@, to our read. `errors` counts broken connections, answers other than 200 and short streams.
 */
#include "load_latencies.h"
#include <math.h>

#define HEAD_BYTES_MAX 16384
#define DUE_MAX (1 << 20)
#define BEHIND_A_CHUNK -2 /* where a line end is to come, and no size */

/* What is asked, and what came of it. */

enum mode { REQUESTS, STREAMS, HOLD };
static enum mode mode = REQUESTS;
static int epoll, port, conns = 1;
static double rate;
static long duration_ms = 3000, warmup_ms = 500, ramp_ms, chunks_wanted = -1;
static const char *path = "/v1/chat/completions", *model = "mock", *key, *body_file;
static char *request;
static size_t request_bytes;
static uint64_t begun_ns, counted_from_ns, ends_ns;

static long answers, errors, non200, short_streams, begun_streams, chunks_seen;
static int first_bad;
static Latencies whole_answers, chunks;

/* Connections. */

enum state { CLOSED, READY, SENDING, HEAD, LENGTH, SIZE_LINE, CHUNK, LAST_LINE, UNTIL_CLOSE };

typedef struct {
    int fd, asks_to_write, status, close_after, done_seen, events_seen, chunks_seen;
    enum state state;
    size_t sent;
    long left;          /* bytes of the body, or of the chunk and its line end */
    uint64_t due_ns;
    char head[HEAD_BYTES_MAX], line[64], *event;
    size_t head_bytes, line_bytes, event_bytes, event_room;
} Connection;

static Connection *all;
static int *idle, idle_count;          /* with a rate: connections that wait for a request to be due */
static uint64_t *due;                  /* and requests that wait for a connection */
static long due_first, due_end;

static void watch(Connection *c, int operation, int writable) {
    struct epoll_event event = {EPOLLIN | (writable ? EPOLLOUT : 0), {.ptr = c}};
    epoll_ctl(epoll, operation, c->fd, &event);
    c->asks_to_write = writable;
}

static void lose(Connection *c) {
    close(c->fd);
    c->state = CLOSED;
}

static void fail(Connection *c) {
    errors++;
    lose(c);
}

static void send_on(Connection *c) {
    while (c->sent < request_bytes) {
        ssize_t sent = send(c->fd, request + c->sent, request_bytes - c->sent, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN && errno != ENOTCONN) fail(c);
            else if (!c->asks_to_write) watch(c, EPOLL_CTL_MOD, 1);
            return;
        }
        c->sent += sent;
    }
    if (c->asks_to_write) watch(c, EPOLL_CTL_MOD, 0);
    if (c->state == SENDING) c->state = HEAD;
}

static void ask(Connection *c, uint64_t due_ns) {
    int fresh = c->state == CLOSED;
    c->sent = c->head_bytes = c->line_bytes = c->event_bytes = 0;
    c->done_seen = c->events_seen = c->chunks_seen = 0;
    c->due_ns = due_ns;
    c->state = SENDING;
    if (!fresh) {
        send_on(c);
        return;
    }
    struct sockaddr_in address = loopback(port);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0 || (connect(c->fd, (void *)&address, sizeof address) && errno != EINPROGRESS)) {
        perror("connect");
        exit(1);
    }
    send_at_once(c->fd);
    watch(c, EPOLL_CTL_ADD, 1);
}

/* The connection is free: it takes what is due, or waits for it. */
static void go_on(Connection *c) {
    uint64_t now = now_ns();
    if (now >= ends_ns || mode == HOLD) return;
    if (!rate) ask(c, now);
    else if (due_first < due_end) ask(c, due[due_first++ % DUE_MAX]);
    else idle[idle_count++] = c - all;
}

static void finish(Connection *c) {
    uint64_t now = now_ns();
    int bad = c->status != 200;
    if (bad) {
        non200++;
        first_bad = first_bad ? first_bad : c->status;
    } else if (mode != REQUESTS && (!c->done_seen || (chunks_wanted >= 0 && c->chunks_seen != chunks_wanted))) {
        short_streams++;
        bad = 1;
    }
    if (bad) errors++;
    else if (mode == REQUESTS && now >= counted_from_ns && now < ends_ns) {
        answers++;
        add_latency(&whole_answers, now - c->due_ns);
    }
    if (c->close_after) lose(c);
    else c->state = READY;
    go_on(c);
}

/* Reading. */

static void see_event(Connection *c, const char *event, size_t bytes, uint64_t now) {
    if (bytes < 6 || memcmp(event, "data:", 5)) return;
    if (!c->events_seen++) begun_streams++;
    if (bytes >= 12 && !memcmp(event, "data: [DONE]", 12)) c->done_seen = 1;
    const char *mark = memmem(event, bytes, "@@", 2);
    if (!mark) return;
    c->chunks_seen++;
    if (now < counted_from_ns || now >= ends_ns) return;
    uint64_t sent_ns = strtoull(mark + 2, NULL, 10);
    chunks_seen++;
    if (now > sent_ns) add_latency(&chunks, now - sent_ns);
}

static void see_body(Connection *c, const char *data, size_t bytes, uint64_t now) {
    if (mode == REQUESTS) return;
    if (c->event_bytes + bytes > c->event_room) {
        c->event_room = 2 * (c->event_bytes + bytes);
        c->event = or_die(realloc(c->event, c->event_room));
    }
    memcpy(c->event + c->event_bytes, data, bytes);
    c->event_bytes += bytes;
    char *at = c->event, *end = c->event + c->event_bytes, *blank;
    while ((blank = memmem(at, end - at, "\n\n", 2)) || (blank = memmem(at, end - at, "\r\n\r\n", 4))) {
        see_event(c, at, blank - at, now);
        at = blank + (*blank == '\r' ? 4 : 2);
    }
    memmove(c->event, at, end - at);
    c->event_bytes = end - at;
}

/* Takes what belongs to the head. Bytes taken, or -1 when it is no head. */
static ssize_t take_head(Connection *c, const char *data, size_t bytes) {
    size_t before = c->head_bytes, room = HEAD_BYTES_MAX - 1 - before, part = bytes < room ? bytes : room;
    memcpy(c->head + before, data, part);
    c->head_bytes += part;
    c->head[c->head_bytes] = 0;
    char *end = strstr(c->head + (before > 3 ? before - 3 : 0), "\r\n\r\n");
    if (!end) return c->head_bytes < HEAD_BYTES_MAX - 1 ? (ssize_t)part : -1;
    end[2] = 0;
    c->status = atoi(c->head + 9);
    c->close_after = 0;
    c->state = UNTIL_CLOSE;
    for (char *line = strstr(c->head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        char *name = line + 2;
        if (!strncasecmp(name, "content-length:", 15)) c->left = atol(name + 15), c->state = LENGTH;
        else if (!strncasecmp(name, "transfer-encoding: chunked", 26)) c->left = 0, c->state = SIZE_LINE;
        else if (!strncasecmp(name, "connection: close", 17)) c->close_after = 1;
    }
    c->close_after |= c->state == UNTIL_CLOSE;
    return end + 4 - (c->head + before);
}

/* Reads a line of the chunk framing byte by byte. 1 when it is whole, -1 when it is none. */
static int take_line(Connection *c, char byte) {
    c->line[c->line_bytes++] = byte;
    if (byte != '\n') return c->line_bytes < sizeof c->line ? 0 : -1;
    c->line[c->line_bytes - 1] = 0;
    c->line_bytes = 0;
    return 1;
}

/* 0, or -1 when this is no answer. What comes behind one is dropped: nothing was asked for it. */
static int take(Connection *c, const char *data, size_t bytes, uint64_t now) {
    while (bytes) {
        ssize_t used = 1;
        int whole;
        switch (c->state) {
        case SENDING:
        case HEAD:
            if ((used = take_head(c, data, bytes)) < 0) return -1;
            if (c->state == LENGTH && !c->left) return finish(c), 0;
            break;
        case LENGTH:
        case CHUNK:
            used = bytes < (size_t)c->left ? bytes : (size_t)c->left;
            see_body(c, data, used, now);
            c->left -= used;
            if (c->left) break;
            if (c->state == LENGTH) return finish(c), 0;
            c->state = SIZE_LINE;
            c->left = BEHIND_A_CHUNK;
            break;
        case SIZE_LINE:
        case LAST_LINE:
            if ((whole = take_line(c, *data)) < 0) return -1;
            if (!whole) break;
            if (c->left == BEHIND_A_CHUNK) c->left = 0;
            else if (c->state == LAST_LINE) {
                if (c->line[0] == '\r') return finish(c), 0; /* else a trailer */
            } else if ((c->left = strtol(c->line, NULL, 16))) c->state = CHUNK;
            else c->state = LAST_LINE;
            break;
        case UNTIL_CLOSE:
            see_body(c, data, used = bytes, now);
            break;
        default:
            return -1;
        }
        data += used;
        bytes -= used;
    }
    return 0;
}

static void read_on(Connection *c) {
    static char buffer[262144];
    ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
    uint64_t now = now_ns();
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0 && !take(c, buffer, got, now)) return;
    if (!got && c->state == UNTIL_CLOSE) {
        finish(c);
        return;
    }
    if (got > 0 || c->state != READY) errors++;
    int waited = c->state == READY && rate; /* it stands among the idle ones already */
    lose(c);
    if (!waited && errors < 100000) go_on(c);
}

/* The run. */

static void make_request(void) {
    size_t body_bytes;
    char *body, small[2048];
    if (body_file) {
        FILE *file = fopen(body_file, "rb");
        if (!file || fseek(file, 0, SEEK_END)) {
            perror(body_file);
            exit(1);
        }
        body_bytes = ftell(file);
        rewind(file);
        body = or_die(malloc(body_bytes));
        body_bytes = fread(body, 1, body_bytes, file);
        fclose(file);
    } else {
        body = small;
        body_bytes = snprintf(
            small, sizeof small,
            "{\"model\":\"%s\",%s\"max_tokens\":128,\"temperature\":0.7,\"messages\":[{\"role\":\"system\",\"content\":"
            "\"You are a helpful assistant.\"},{\"role\":\"user\",\"content\":\"Write a short note about the history "
            "of the lighthouse, its keepers, and the sea around it.\"}]}",
            model, mode == REQUESTS ? "" : "\"stream\":true,\"stream_options\":{\"include_usage\":true},");
    }
    request = or_die(malloc(body_bytes + 2048));
    request_bytes = snprintf(request, 2048,
                             "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: load\r\nAccept: */*\r\n"
                             "Content-Type: application/json\r\n%s%s%sContent-Length: %zu\r\n\r\n",
                             path, port, key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "",
                             body_bytes);
    memcpy(request + request_bytes, body, body_bytes);
    request_bytes += body_bytes;
    if (body != small) free(body);
}

static int read_option(char *option) {
    char *value = strchr(option, '=');
    if (!value) return 0;
    *value++ = 0;
    if (!strcmp(option, "mode"))
        mode = !strcmp(value, "stream") ? STREAMS : !strcmp(value, "hold") ? HOLD : REQUESTS;
    else if (!strcmp(option, "conns")) conns = atoi(value);
    else if (!strcmp(option, "duration_ms")) duration_ms = atol(value);
    else if (!strcmp(option, "warmup_ms")) warmup_ms = atol(value);
    else if (!strcmp(option, "ramp_ms")) ramp_ms = atol(value);
    else if (!strcmp(option, "rate")) rate = atof(value);
    else if (!strcmp(option, "chunks")) chunks_wanted = atol(value);
    else if (!strcmp(option, "path")) path = value;
    else if (!strcmp(option, "model")) model = value;
    else if (!strcmp(option, "key")) key = value;
    else if (!strcmp(option, "body")) body_file = value;
    else return 0;
    return 1;
}

/* Begins what is due by now. Returns when the next thing is. */
static uint64_t begin_due(uint64_t now) {
    static uint64_t next_ns;
    static int started;
    if (rate) {
        if (!next_ns) next_ns = begun_ns + ramp_ms * 1000000ull;
        for (; next_ns <= now; next_ns += -log(1 - drand48()) / rate * 1e9) due[due_end++ % DUE_MAX] = next_ns;
        while (idle_count && due_first < due_end) ask(&all[idle[--idle_count]], due[due_first++ % DUE_MAX]);
        return next_ns;
    }
    while (started < conns && now >= begun_ns + (uint64_t)(1e6 * ramp_ms * started / conns)) ask(&all[started++], now);
    return started < conns ? now + 200000 : ends_ns;
}

int main(int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        if (read_option(argv[i])) continue;
        fprintf(stderr, "there is no option %s\n", argv[i]);
        return 2;
    }
    if (argc < 2 || (port = atoi(argv[1])) <= 0 || conns < 1) {
        fprintf(stderr, "usage: load PORT [name=value ...]\n");
        return 2;
    }
    allow_many_files();
    make_request();
    epoll = epoll_create1(0);
    all = or_die(calloc(conns, sizeof *all));
    idle = or_die(calloc(conns, sizeof *idle));
    due = or_die(calloc(DUE_MAX, sizeof *due));
    if (rate)
        for (int i = 0; i < conns; i++) idle[idle_count++] = i;
    srand48(7);
    begun_ns = now_ns();
    counted_from_ns = begun_ns + (ramp_ms + warmup_ms) * 1000000ull;
    ends_ns = counted_from_ns + duration_ms * 1000000ull;
    struct epoll_event events[1024];
    for (uint64_t now; (now = now_ns()) < ends_ns;) {
        uint64_t next_ns = begin_due(now);
        int got = wait_events(epoll, events, 1024, next_ns < ends_ns ? next_ns : ends_ns);
        for (int i = 0; i < got; i++) {
            Connection *c = events[i].data.ptr;
            if (c->state != CLOSED && events[i].events & EPOLLOUT) send_on(c);
            if (c->state != CLOSED && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_on(c);
        }
    }
    double counted_s = duration_ms / 1000.0;
    printf("{\"answers\":%ld,\"requests_per_s\":%.1f,\"chunks\":%ld,\"chunks_per_s\":%.1f,\"begun_streams\":%ld,"
           "\"errors\":%ld,\"non200\":%ld,\"first_bad\":%d,\"short\":%ld",
           answers, answers / counted_s, chunks_seen, chunks_seen / counted_s, begun_streams, errors, non200,
           first_bad, short_streams);
    print_latencies("req_us", &whole_answers);
    print_latencies("chunk_us", &chunks);
    printf("}\n");
    return 0;
}
