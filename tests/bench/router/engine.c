/* An engine in OpenAI's shape for the bench: one thread that answers as fast, or as slowly, as it is told.
 *
 *   engine PORT            listens on the loopback and prints the port (0: one that is free)
 *
 *   GET /_set?name=value&…  how requests that come from now on are answered:
 *     delay_us   wait before an answer, or before a stream's first chunk
 *     chunks     in a stream
 *     gap_us     between a stream's chunks; 0: as fast as they are taken
 *     size       bytes of a chunk's event
 *     usage      1: an answer that is no stream says what it took; 0: it does not
 *   GET /_counts            requests, streams that are open (active), chunks sent, and clients that left before their
 *                           answer was whole (aborted), with the time at which the last one was seen to leave
 *
 * A chunk's text holds @@NANOSECONDS@@ of CLOCK_MONOTONIC when it was sent, so that who reads it on this machine knows
 * how long it took. One event is one HTTP chunk and one send, as engines do it.
 */
#include "engine_answers.h"
#include "engine_connections.h"

static struct {
    long delay_us, chunks, gap_us, size, usage;
} set = {0, 200, 0, 250, 1};

/* Answers. */

#define EVENT_BYTES_MAX 8192

static int answer(Connection *c, const char *status, const char *body) {
    char text[4096];
    int bytes = snprintf(text, sizeof text,
                         "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status,
                         strlen(body), body);
    return put(c, text, bytes);
}

static int answer_chat(Connection *c) {
    static char without[sizeof ANSWER];
    if (set.usage) return answer(c, "200 OK", ANSWER);
    if (!*without) memcpy(strstr(strcpy(without, ANSWER), "usage"), "other", 5);
    return answer(c, "200 OK", without);
}

static int put_chunk(Connection *c, const char *event, size_t bytes, const char *end) {
    char chunk[EVENT_BYTES_MAX + 64];
    int at = snprintf(chunk, sizeof chunk, "%zx\r\n", bytes);
    memcpy(chunk + at, event, bytes);
    at += bytes + sprintf(chunk + at + bytes, "\r\n%s", end);
    return put(c, chunk, at);
}

/* The next chunk, or the end of a stream. 0 more follow, 1 it was the last, -1 the peer is gone. */
static int stream_on(Connection *c) {
    if (!c->chunks_left) {
        count.active--;
        c->state = IDLE;
        return put_chunk(c, STREAM_END, sizeof STREAM_END - 1, "0\r\n\r\n") < 0 ? -1 : 1;
    }
    char event[EVENT_BYTES_MAX];
    int at = sprintf(event, EVENT_BEGIN "{\"index\":0,\"delta\":{\"content\":\"@@%llu@@", (unsigned long long)now_ns());
    long padding = c->size - at - (long)(sizeof EVENT_END - 1);
    while (padding > 0 && at < EVENT_BYTES_MAX - 256) {
        int part = padding < (long)sizeof PADDING - 1 ? padding : (long)sizeof PADDING - 1;
        memcpy(event + at, PADDING, part);
        at += part, padding -= part;
    }
    memcpy(event + at, EVENT_END, sizeof EVENT_END - 1);
    c->chunks_left--;
    count.chunks++;
    return put_chunk(c, event, at + sizeof EVENT_END - 1, "");
}

/* Requests. */

static void set_named(const char *name, long value) {
    if (!strcmp(name, "delay_us")) set.delay_us = value;
    if (!strcmp(name, "chunks")) set.chunks = value;
    if (!strcmp(name, "gap_us")) set.gap_us = value;
    if (!strcmp(name, "size")) set.size = value;
    if (!strcmp(name, "usage")) set.usage = value;
}

/* "stream": true stands near the beginning of a body, or near its end. */
static int asks_for_stream(const char *body, size_t bytes) {
    size_t part = bytes < 65536 ? bytes : 65536;
    const char *places[] = {body, body + bytes - part};
    for (int i = 0; i < 2; i++) {
        const char *end = places[i] + part, *found = memmem(places[i], part, "\"stream\"", 8);
        for (found = found ? found + 8 : end; found < end && (*found == ' ' || *found == ':'); found++) {}
        if (found < end && *found == 't') return 1;
    }
    return 0;
}

static int complete(Connection *c, int stream) {
    count.requests++;
    uint64_t due = now_ns() + set.delay_us * 1000;
    if (!stream) {
        if (!set.delay_us) return answer_chat(c);
        c->state = WAITING;
        set_timer(c, due);
        return 0;
    }
    count.active++;
    c->state = STREAMING;
    c->chunks_left = set.chunks, c->gap_us = set.gap_us, c->size = set.size;
    if (c->gap_us || set.delay_us) set_timer(c, due);
    else be_eager(c);
    return put(c, STREAM_HEAD, sizeof STREAM_HEAD - 1);
}

/* Answers the request whose head and body have come. -1 when the peer is gone. */
static int handle(Connection *c, const char *body, size_t body_bytes) {
    char method[8] = "", path[512] = "", counts[300];
    sscanf(c->in, "%7s %511s", method, path);
    if (!strncmp(path, "/_set?", 6)) {
        for (char *pair = strtok(path + 6, "&"); pair; pair = strtok(NULL, "&")) {
            char *equals = strchr(pair, '=');
            if (equals) *equals = 0, set_named(pair, atol(equals + 1));
        }
        return answer(c, "200 OK", "{}");
    }
    if (!strcmp(path, "/_counts")) {
        snprintf(counts, sizeof counts,
                 "{\"requests\":%ld,\"active\":%ld,\"chunks\":%ld,\"aborted\":%ld,\"last_abort_ns\":%llu}",
                 count.requests, count.active, count.chunks, count.aborted, (unsigned long long)count.last_abort_ns);
        return answer(c, "200 OK", counts);
    }
    if (!strcmp(method, "POST") && strstr(path, "completions"))
        return complete(c, asks_for_stream(body, body_bytes));
    /* What the routers beside us ask an engine before they send it anything. */
    if (strstr(path, "/v1/models"))
        return answer(c, "200 OK",
                      "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1700000000,"
                      "\"owned_by\":\"mock\",\"root\":\"mock\",\"max_model_len\":32768}]}");
    if (strstr(path, "_info"))
        return answer(c, "200 OK",
                      "{\"model_path\":\"mock\",\"model_id\":\"mock\",\"tokenizer_path\":\"mock\","
                      "\"served_model_name\":\"mock\",\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,"
                      "\"version\":\"0.5.0\",\"max_total_num_tokens\":100000,\"disaggregation_mode\":\"null\","
                      "\"load_balance_method\":\"round_robin\"}");
    if (strstr(path, "health") || strstr(path, "ping") || strstr(path, "version"))
        return answer(c, "200 OK", "{\"version\":\"0.11.0\"}");
    return answer(c, "404 Not Found", "{\"error\":\"not found\"}");
}

static int read_head(Connection *c) {
    char *end = memmem(c->in, c->in_bytes, "\r\n\r\n", 4);
    if (!end) return 0;
    c->head_bytes = c->chunk_at = end + 4 - c->in;
    c->body_bytes = c->chunked = 0;
    end[2] = 0;
    for (char *line = strstr(c->in, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        if (!strncasecmp(line + 2, "content-length:", 15)) c->body_bytes = strtoul(line + 17, NULL, 10);
        if (!strncasecmp(line + 2, "transfer-encoding:", 18)) c->chunked = !!strcasestr(line + 20, "chunked");
    }
    end[2] = '\r';
    return 1;
}

/* Where a request ends in what was read; 0 while it is not whole. */
static size_t request_end(Connection *c) {
    if (!c->chunked) {
        size_t end = c->head_bytes + c->body_bytes;
        return end <= c->in_bytes ? end : 0;
    }
    for (;;) {
        char *from = c->in + c->chunk_at;
        char *line = c->chunk_at < c->in_bytes ? memmem(from, c->in_bytes - c->chunk_at, "\r\n", 2) : NULL;
        if (!line) return 0;
        size_t bytes = strtoul(from, NULL, 16), end = (line - c->in) + 2 + bytes + 2;
        if (end > c->in_bytes) return 0;
        c->chunk_at = end;
        if (!bytes) return end;
    }
}

/* Answers what is whole of what was read. -1 when the peer is gone. */
static int serve(Connection *c) {
    while (c->state == IDLE && c->in_bytes) {
        if (!c->head_bytes && !read_head(c)) return 0;
        size_t end = request_end(c);
        if (!end) return 0;
        c->in[c->in_bytes] = 0;
        c->in[c->head_bytes - 1] = 0;
        if (handle(c, c->in + c->head_bytes, end - c->head_bytes) < 0) return -1;
        memmove(c->in, c->in + end, c->in_bytes - end);
        c->in_bytes -= end;
        c->head_bytes = 0;
        if (!c->in_bytes && c->in_room > 1 << 20) c->in = or_die(realloc(c->in, c->in_room = 8192));
    }
    return 0;
}

static int read_on(Connection *c) {
    for (;;) {
        if (c->in_bytes + 4096 > c->in_room) {
            c->in_room = c->in_room ? 2 * c->in_room : 8192;
            c->in = or_die(realloc(c->in, c->in_room));
        }
        size_t room = c->in_room - c->in_bytes - 1;
        ssize_t got = recv(c->fd, c->in + c->in_bytes, room, 0);
        if (got <= 0) return got < 0 && errno == EAGAIN ? 0 : -1;
        c->in_bytes += got;
        if (serve(c) < 0) return -1;
        if ((size_t)got < room) return 0;
    }
}

/* The loop. */

static void accept_all(int listener) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        send_at_once(fd);
        Connection *c = or_die(calloc(1, sizeof *c));
        c->fd = fd;
        c->timer = c->eager = -1;
        struct epoll_event event = {EPOLLIN | EPOLLRDHUP, {.ptr = c}};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

static void run_timers(void) {
    for (uint64_t now = now_ns(); timers_count && timers[0]->due_ns <= now;) {
        Connection *c = timers[0];
        drop_timer(c);
        if (c->state == WAITING) {
            c->state = IDLE;
            if (answer_chat(c) < 0 || serve(c) < 0) drop(c);
        } else if (!c->gap_us) {
            be_eager(c);
        } else {
            int ended = stream_on(c);
            if (ended < 0 || (ended && serve(c) < 0)) drop(c);
            else if (!ended) set_timer(c, c->due_ns + c->gap_us * 1000);
        }
    }
}

static void run_eager(void) {
    for (int i = eager_count - 1; i >= 0; i--) {
        if (i >= eager_count) continue;
        Connection *c = eager[i];
        int ended = stream_on(c);
        if (ended > 0 || c->asks_to_write) be_patient(c);
        if (ended < 0 || (ended && serve(c) < 0)) drop(c);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: engine PORT\n");
        return 2;
    }
    allow_many_files();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = loopback(atoi(argv[1]));
    socklen_t address_bytes = sizeof address;
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) {
        perror("listen");
        return 1;
    }
    getsockname(listener, (void *)&address, &address_bytes);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    epoll = epoll_create1(0);
    struct epoll_event events[512], listening = {EPOLLIN, {.ptr = NULL}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &listening);
    for (;;) {
        uint64_t until = eager_count ? 0 : timers_count ? timers[0]->due_ns : now_ns() + NS_PER_S;
        int got = wait_events(epoll, events, 512, until);
        for (int i = 0; i < got; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) accept_all(listener);
            else if (events[i].events & (EPOLLERR | EPOLLHUP)) drop(c);
            else if ((events[i].events & EPOLLOUT) && put_rest(c) < 0) drop(c);
            else if ((events[i].events & (EPOLLIN | EPOLLRDHUP)) && read_on(c) < 0) drop(c);
        }
        run_timers();
        run_eager();
    }
}
