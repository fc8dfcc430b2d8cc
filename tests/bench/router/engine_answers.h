/* What the bench's engine says: an answer, and the parts of a stream. */
static const char ANSWER[] =
    "{\"id\":\"chatcmpl-6f0d3c1f0a5d4a0d9be0e5a7d8a6b001\",\"object\":\"chat.completion\",\"created\":1700000000,"
    "\"model\":\"mock\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox "
    "jumps over the lazy dog, then sits down in the long grass beside the river to consider how many words make six "
    "hundred bytes of answer; it turns out that the number is rather small.\",\"refusal\":null,\"tool_calls\":[]},"
    "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":42,"
    "\"total_tokens\":106,\"completion_tokens\":64,\"prompt_tokens_details\":null}}";
static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    "transfer-encoding: chunked\r\n\r\n";
#define EVENT_BEGIN                                                                                                 \
    "data: {\"id\":\"chatcmpl-6f0d3c1f0a5d4a0d9be0e5a7\",\"object\":\"chat.completion.chunk\","                      \
    "\"created\":1700000000,\"model\":\"mock\",\"choices\":["
static const char EVENT_END[] = "\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
static const char STREAM_END[] =
    EVENT_BEGIN "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"
    EVENT_BEGIN "],\"usage\":{\"prompt_tokens\":42,\"total_tokens\":106,\"completion_tokens\":64}}\n\n"
    "data: [DONE]\n\n";
static const char PADDING[] = "the quick brown fox jumps over the lazy dog and then the lazy dog sleeps on for hours ";
