/* The connections of the bench's engine: what is read and sent, when the next thing is due, and what is counted. */
#include "wire.h"

static struct {
    long requests, active, chunks, aborted;
    uint64_t last_abort_ns;
} count;

enum state { IDLE, WAITING, STREAMING };

typedef struct {
    int fd, asks_to_write;
    enum state state;
    int timer;                               /* its place among the timers, -1: none */
    int eager;                               /* its place among the streams that send at once, -1: none */
    char *in, *out;                          /* what was read, and what could not be sent yet */
    size_t in_bytes, in_room, out_at, out_bytes, out_room;
    size_t head_bytes, body_bytes, chunk_at; /* of the request that is being read; no head yet: 0 */
    int chunked;
    long chunks_left, gap_us, size;          /* of the stream that is being sent */
    uint64_t due_ns;
} Connection;

static int epoll;

/* Timers: a heap, the next one first. */

static Connection **timers;
static int timers_count, timers_room;

static void put_timer(int at, Connection *c) {
    timers[at] = c;
    c->timer = at;
}

static void sift(int at, Connection *c) {
    while (at && c->due_ns < timers[(at - 1) / 2]->due_ns) {
        put_timer(at, timers[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (int child; (child = 2 * at + 1) < timers_count; at = child) {
        if (child + 1 < timers_count && timers[child + 1]->due_ns < timers[child]->due_ns) child++;
        if (c->due_ns <= timers[child]->due_ns) break;
        put_timer(at, timers[child]);
    }
    put_timer(at, c);
}

static void set_timer(Connection *c, uint64_t due_ns) {
    c->due_ns = due_ns;
    if (timers_count == timers_room) {
        timers_room = timers_room ? 2 * timers_room : 1024;
        timers = or_die(realloc(timers, timers_room * sizeof *timers));
    }
    sift(timers_count++, c);
}

static void drop_timer(Connection *c) {
    if (c->timer < 0) return;
    Connection *last = timers[--timers_count];
    if (last != c) sift(c->timer, last);
    c->timer = -1;
}

/* Streams without a gap: each sends a chunk in every turn of the loop. */

static Connection **eager;
static int eager_count, eager_room;

static void be_eager(Connection *c) {
    if (c->eager >= 0) return;
    if (eager_count == eager_room) {
        eager_room = eager_room ? 2 * eager_room : 1024;
        eager = or_die(realloc(eager, eager_room * sizeof *eager));
    }
    c->eager = eager_count;
    eager[eager_count++] = c;
}

static void be_patient(Connection *c) {
    if (c->eager < 0) return;
    eager[c->eager] = eager[--eager_count];
    eager[c->eager]->eager = c->eager;
    c->eager = -1;
}

/* Connections. */

static void drop(Connection *c) {
    if (c->state != IDLE) {
        count.aborted++;
        count.last_abort_ns = now_ns();
    }
    if (c->state == STREAMING) count.active--;
    drop_timer(c);
    be_patient(c);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

static void watch(Connection *c, int writable) {
    if (c->asks_to_write == writable) return;
    struct epoll_event event = {EPOLLIN | EPOLLRDHUP | (writable ? EPOLLOUT : 0), {.ptr = c}};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
    c->asks_to_write = writable;
}

/* Sends, or keeps for later what the socket does not take. 0, or -1 when the peer is gone. */
static int put(Connection *c, const char *data, size_t bytes) {
    if (!c->out_bytes) {
        ssize_t sent = send(c->fd, data, bytes, MSG_NOSIGNAL);
        if (sent == (ssize_t)bytes) return 0;
        if (sent < 0 && errno != EAGAIN) return -1;
        if (sent > 0) data += sent, bytes -= sent;
        c->out_at = 0;
    }
    if (c->out_at + c->out_bytes + bytes > c->out_room) {
        c->out_room = 2 * (c->out_at + c->out_bytes + bytes);
        c->out = or_die(realloc(c->out, c->out_room));
    }
    memcpy(c->out + c->out_at + c->out_bytes, data, bytes);
    c->out_bytes += bytes;
    watch(c, 1);
    return 0;
}

static int put_rest(Connection *c) {
    ssize_t sent = send(c->fd, c->out + c->out_at, c->out_bytes, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN ? 0 : -1;
    c->out_at += sent;
    c->out_bytes -= sent;
    if (c->out_bytes) return 0;
    watch(c, 0);
    if (c->state == STREAMING && !c->gap_us && c->timer < 0) be_eager(c);
    return 0;
}
