/* luce.h: the kernel contract.
 *
 * One header, implemented by libluce_cpu, libluce_cuda and libluce_hip. An op is
 *     luce_status luce_<op>(luce_context *, const luce_<op>_args *);
 * and a step is a list of ops that luce_run() runs in one call.
 *
 * Rules that every op keeps:
 *   - it allocates nothing, synchronises nothing, and is safe under capture;
 *   - what it does not support is a status with a message (luce_error), never a silent return;
 *   - what goes wrong while a recorded step runs (a token id out of range, a bad page) sets the
 *     context's fault word, which the host reads at commit;
 *   - arguments never change between runs, data does: every ragged dimension has its upper bound in
 *     the tensor and a pointer to its true count (NULL: the bound). Padding costs no arithmetic;
 *   - a row's result depends on that row alone: same bits alone or in a batch, whatever the number
 *     of threads and the chunks in which its rows came.
 *
 * Shapes are in ggml order: ne[0] is contiguous. n is the number of rows (tokens) of the step.
 * luced/device/abi.py is generated from this file by kernels/tools/gen_abi.py.
 */
#ifndef LUCE_H
#define LUCE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define LUCE_API __declspec(dllexport)
#else
#define LUCE_API __attribute__((visibility("default")))
#endif

#define LUCE_ABI_VERSION 1

typedef enum luce_status {
  LUCE_OK = 0,
  LUCE_UNSUPPORTED = 1,  /* this library has no kernel for the types or shapes given */
  LUCE_BAD_ARGUMENT = 2, /* shapes that contradict each other: a bug of the caller */
  LUCE_NO_MEMORY = 3,
  LUCE_NO_DEVICE = 4,
  LUCE_FAULT = 5, /* the device failed: the context is lost */
} luce_status;

/* GGUF's type ids, then ours. */
typedef enum luce_type {
  LUCE_F32 = 0,
  LUCE_F16 = 1,
  LUCE_Q4_0 = 2,
  LUCE_Q4_1 = 3,
  LUCE_Q5_0 = 6,
  LUCE_Q5_1 = 7,
  LUCE_Q8_0 = 8,
  LUCE_Q2_K = 10,
  LUCE_Q3_K = 11,
  LUCE_Q4_K = 12,
  LUCE_Q5_K = 13,
  LUCE_Q6_K = 14,
  LUCE_IQ2_XXS = 16,
  LUCE_IQ2_XS = 17,
  LUCE_IQ3_XXS = 18,
  LUCE_IQ4_NL = 20,
  LUCE_IQ3_S = 21,
  LUCE_IQ2_S = 22,
  LUCE_IQ4_XS = 23,
  LUCE_I32 = 26,
  LUCE_BF16 = 30,
  LUCE_TQ2_0 = 35,
  LUCE_MXFP4 = 39,
  LUCE_NVFP4 = 40,
  LUCE_U8 = 100,  /* bytes, or an array of ne[0] structs of nb[0] bytes, one of those below */
  LUCE_Q8_A = 101 /* quantised activations: what luce_quantize writes and luce_matmul reads. A row of K
                     values is int8 q[K], float d[K/32], int16 sum[K/16] (sums of q over 16 values);
                     K is a multiple of 32. Value i is d[i/32] * q[i]. */
} luce_type;

typedef enum luce_layout {
  LUCE_ROWS = 0,  /* as in the file: nb[] holds byte strides */
  LUCE_PACKED = 1 /* as luce_pack() wrote it for this context; nb[] is unused */
} luce_layout;

typedef enum luce_isa { LUCE_ISA_AUTO = 0, LUCE_ISA_BASELINE = 1, LUCE_ISA_AVX2 = 2, LUCE_ISA_AVX512 = 3 } luce_isa;

typedef struct luce_tensor {
  void *data; /* NULL: an optional tensor that is absent */
  int32_t type;
  int32_t layout;
  int64_t ne[4]; /* elements in each dimension, at least 1 */
  int64_t nb[4]; /* bytes from one element to the next in each dimension (for block types, nb[0]: bytes of a block) */
} luce_tensor;

typedef struct luce_context luce_context;

/* ---- context ---- */

typedef struct luce_open_args {
  int32_t device;    /* index of the device among its kind */
  int32_t isa;       /* luce_isa on a CPU; on a GPU the chip generation, 0: what the chip is */
  int32_t n_threads; /* CPU: threads that compute, the caller included; 0: one for each core */
  void *stream;      /* GPU: where the ops go (cudaStream_t, hipStream_t); it outlives the context */
} luce_open_args;

typedef struct luce_info {
  int32_t isa;
  int32_t n_threads;
  char name[64]; /* of the device, NUL-terminated */
} luce_info;

LUCE_API uint32_t luce_abi_version(void);
LUCE_API luce_status luce_open(const luce_open_args *args, luce_context **out);
LUCE_API void luce_close(luce_context *context);
LUCE_API luce_status luce_get_info(luce_context *context, luce_info *out);
/* The message of the last status of this context that was not LUCE_OK; of the last luce_open for NULL. */
LUCE_API const char *luce_error(luce_context *context);
/* The fault word, and clear it. 0: none. See luce_fault_code. */
LUCE_API uint32_t luce_take_fault(luce_context *context);

typedef enum luce_fault_code {
  LUCE_FAULT_NONE = 0,
  LUCE_FAULT_TOKEN = 1,  /* a token id outside the vocabulary */
  LUCE_FAULT_PAGE = 2,   /* a page or slot outside the cache */
  LUCE_FAULT_ROW = 3,    /* a row index outside its tensor */
  LUCE_FAULT_LOGITS = 4, /* a row of logits with a NaN, +inf or no finite value, or with every token masked */
  LUCE_FAULT_MAILBOX = 5 /* nobody served the mailbox in time */
} luce_fault_code;

/* ---- weights ---- */

/* Bytes of `weight` packed for this context's kernels; 0: they read it best as it is. */
LUCE_API luce_status luce_packed_bytes(luce_context *context, const luce_tensor *weight, int64_t *out_bytes);
/* Packs rows [row_begin, row_end) of `weight` (LUCE_ROWS) into `packed`; row_begin is a multiple of 16. */
LUCE_API luce_status luce_pack(luce_context *context, const luce_tensor *weight, void *packed, int64_t row_begin,
                               int64_t row_end);

/* ---- ops ---- */

/* Every op, once: the enum, the bindings and each library's table are made from this list. */
#define LUCE_OPS(X) \
  X(embed)          \
  X(quantize)       \
  X(matmul)         \
  X(rms_norm)       \
  X(l2_norm)        \
  X(gated_norm)     \
  X(add)            \
  X(scale)          \
  X(glu)            \
  X(gate)           \
  X(softcap)        \
  X(rope_angles)    \
  X(rope)           \
  X(kv_write)       \
  X(kv_copy)        \
  X(attention)      \
  X(merge)          \
  X(compress)       \
  X(select)         \
  X(conv)           \
  X(conv_commit)    \
  X(delta)          \
  X(delta_commit)   \
  X(rows)           \
  X(route)          \
  X(expert_matmul)  \
  X(combine)        \
  X(hyper_weights)  \
  X(hyper_mix)      \
  X(count)          \
  X(sample)         \
  X(advance)        \
  X(mailbox)

#define LUCE_OP_ENUM(name) LUCE_OP_##name,
typedef enum luce_op { LUCE_OPS(LUCE_OP_ENUM) LUCE_N_OPS } luce_op;
#undef LUCE_OP_ENUM

/* out[:, i] = scale * weight[:, ids[i]]. */
typedef struct luce_embed_args {
  luce_tensor weight; /* [E, V], any weight type, LUCE_ROWS */
  luce_tensor ids;    /* I32 [n] */
  luce_tensor out;    /* F32 [E, n] */
  float scale;
  const int32_t *n_rows;
} luce_embed_args;

/* Rows of F32 to rows of Q8_A: d = max|x| / 127 over 32 values, q = round-to-even(x / d). */
typedef struct luce_quantize_args {
  luce_tensor x;   /* F32 [K, n] */
  luce_tensor out; /* Q8_A [K, n] */
  const int32_t *n_rows;
} luce_quantize_args;

/* out[j, i] = sum_k weight[k, j] * x[k, i] + bias[j] + add[j, i]. */
typedef struct luce_matmul_args {
  luce_tensor weight;    /* [K, N]; quantised types meet Q8_A, F32/F16/BF16 meet F32 */
  luce_tensor x;         /* F32 or Q8_A [K, n] */
  luce_tensor bias;      /* F32 [N], optional */
  luce_tensor add;       /* F32 [N, n], optional; may be out itself */
  luce_tensor out;       /* F32 [N, n] */
  luce_tensor workspace; /* U8, luce_workspace_bytes() */
  const int32_t *n_rows;
} luce_matmul_args;

/* out[:, h, i] = weight * x[:, h, i] / sqrt(mean(x^2) + eps). */
typedef struct luce_rms_norm_args {
  luce_tensor x;      /* F32 [D, H, n] */
  luce_tensor weight; /* F32 [D], optional */
  luce_tensor out;    /* F32 [D, H, n]; may be x */
  float eps;
  const int32_t *n_rows;
} luce_rms_norm_args;

/* out[:, h, i] = x[:, h, i] / sqrt(sum(x^2) + eps). */
typedef struct luce_l2_norm_args {
  luce_tensor x;   /* F32 [D, H, n] */
  luce_tensor out; /* F32 [D, H, n]; may be x */
  float eps;
  const int32_t *n_rows;
} luce_l2_norm_args;

/* out[:, h, i] = weight * x[:, h, i] / sqrt(mean(x^2) + eps) * silu(gate[:, h, i]). */
typedef struct luce_gated_norm_args {
  luce_tensor x;      /* F32 [D, H, n] */
  luce_tensor gate;   /* F32 [D, H, n] */
  luce_tensor weight; /* F32 [D] */
  luce_tensor out;    /* F32 [D, H, n]; may be x or gate */
  float eps;
  const int32_t *n_rows;
} luce_gated_norm_args;

/* out = a + b. */
typedef struct luce_add_args {
  luce_tensor a, b, out; /* F32 [D, n]; out may be a or b */
  const int32_t *n_rows;
} luce_add_args;

/* out = factor * x. */
typedef struct luce_scale_args {
  luce_tensor x, out; /* F32 [D, n]; out may be x */
  float factor;
  const int32_t *n_rows;
} luce_scale_args;

typedef enum luce_activation { LUCE_SILU = 0, LUCE_GELU_TANH = 1 } luce_activation;

/* out = activation(gate) * up; with a limit, of min(gate, limit) and of up held within [-limit, limit]. */
typedef struct luce_glu_args {
  luce_tensor gate, up, out; /* F32 [F, n]; out may be gate or up */
  int32_t activation;
  float limit; /* 0: none */
  const int32_t *n_rows;
} luce_glu_args;

typedef enum luce_gate_function { LUCE_GATE_SIGMOID = 0, LUCE_GATE_SOFTPLUS = 1 } luce_gate_function;

/* out[d, h, i] = x[d, h, i] * function(gate[d, h, i]); a gate of one value is for all of its head. */
typedef struct luce_gate_args {
  luce_tensor x;    /* F32 [D, H, n] */
  luce_tensor gate; /* F32 [D, H, n] or [1, H, n] */
  luce_tensor out;  /* F32 [D, H, n]; may be x or gate */
  int32_t function; /* luce_gate_function */
  const int32_t *n_rows;
} luce_gate_args;

/* out = cap * tanh(x / cap). */
typedef struct luce_softcap_args {
  luce_tensor x, out; /* F32 [D, n]; out may be x */
  float cap;
  const int32_t *n_rows;
} luce_softcap_args;

/* out[2p, i] = magnitude * cos(positions[i] * frequencies[p]), out[2p+1, i] the sine. Every rope scaling
 * (linear, YaRN, llama-3 factors) is a table of frequencies and a magnitude. */
typedef struct luce_rope_angles_args {
  luce_tensor positions;   /* I32 [n] */
  luce_tensor frequencies; /* F32 [n_rot / 2] */
  luce_tensor out;         /* F32 [n_rot, n] */
  float magnitude;
  const int32_t *n_rows;
} luce_rope_angles_args;

typedef enum luce_rope_mode {
  LUCE_ROPE_NORM = 0, /* pairs (x[2p], x[2p+1]) */
  LUCE_ROPE_NEOX = 1  /* pairs (x[p], x[p + n_rot/2]) */
} luce_rope_mode;

/* (a, b) -> (a cos - b sin, a sin + b cos) on the first n_rot values of each head; the rest passes through. */
typedef struct luce_rope_args {
  luce_tensor x;      /* F32 [D, H, n] */
  luce_tensor angles; /* F32 [n_rot, n] */
  luce_tensor out;    /* F32 [D, H, n]; may be x */
  int32_t mode;
  const int32_t *n_rows;
} luce_rope_args;

/* ---- paged cache ----
 * A cache group has n_pages pages of page_size cells. A sequence's cells are counted through its page table:
 * cell c of sequence s lies in page page_table[c / page_size, s] at c % page_size; the *slot* of a cell is
 * page * page_size + c % page_size. A table entry of -1 is a hole: its cells are not there and not seen.
 * cell_pos holds each cell's logical position: it decides what is seen, the cell's number decides the order. */

/* Stores k[:, :, i], v[:, :, i] and positions[i] at slots[i]; -1: nowhere. */
typedef struct luce_kv_write_args {
  luce_tensor k;         /* F32 [D, n_kv, n] */
  luce_tensor v;         /* F32 [Dv, n_kv, n] */
  luce_tensor slots;     /* I32 [n] */
  luce_tensor positions; /* I32 [n] */
  luce_tensor k_pages;   /* F32, F16, BF16, Q8_0 or Q4_0 [D, page_size, n_kv, n_pages] */
  luce_tensor v_pages;   /* one of these [Dv, page_size, n_kv, n_pages]; k_pages itself where v is k */
  luce_tensor cell_pos;  /* I32 [page_size, n_pages]; every layer of a group writes the same values */
  const int32_t *n_rows;
} luce_kv_write_args;

/* Copies the first n_cells cells of page src to page dst (copy on write). */
typedef struct luce_kv_copy_args {
  luce_tensor copies; /* I32 [3, n]: src, dst, n_cells */
  luce_tensor k_pages, v_pages, cell_pos;
  const int32_t *n_rows;
} luce_kv_copy_args;

/* Row i of sequence s = row_seq[i] sees cell c of s iff
 *   without parents: c <= row_cell[i];
 *   with parents (a draft tree; parent before child in the batch): c < seq_past[s], or c is the cell of row i or of
 *   one of its ancestors, found through parents[] (-1: the root hangs on the past);
 * and cell_pos <= row_pos[i], and, when window > 0, row_pos[i] - cell_pos < window, and, with `cells`, c is among
 * cells[:, i].
 * Softmax over scale * q.k (softcapped when softcap > 0) and the head's sink, if there is one; head h reads
 * KV head h / (H / n_kv). Reduced page by page, in order of the table: absolute pages, so that company, chunks and
 * restored caches change no bit. Rows of one sequence are adjacent. */
typedef struct luce_attention_args {
  luce_tensor q;          /* F32 [D, H, n] */
  luce_tensor k_pages;    /* [D, page_size, n_kv, n_pages] */
  luce_tensor v_pages;    /* [Dv, page_size, n_kv, n_pages] */
  luce_tensor cell_pos;   /* I32 [page_size, n_pages] */
  luce_tensor page_table; /* I32 [max_pages, n_seqs] */
  luce_tensor row_seq;    /* I32 [n] */
  luce_tensor row_pos;    /* I32 [n] */
  luce_tensor row_cell;   /* I32 [n] */
  luce_tensor seq_past;   /* I32 [n_seqs], with parents */
  luce_tensor parents;    /* I32 [n], optional: row index in this batch */
  luce_tensor cells;      /* I32 [k, n], optional: ascending; the first -1 ends them */
  luce_tensor sinks;      /* F32 [H], optional */
  luce_tensor lse;        /* F32 [H, n], optional: log of the sum of e^logit, the sink's too; -inf: it saw nothing */
  luce_tensor out;        /* F32 [Dv, H, n]; 0 for a row that saw nothing */
  luce_tensor workspace;  /* U8, luce_workspace_bytes() */
  float scale;
  float softcap;
  int32_t window;
  const int32_t *n_rows;
} luce_attention_args;

/* The attention over all that two of them saw, from what each gave. */
typedef struct luce_merge_args {
  luce_tensor a, b;         /* F32 [Dv, H, n] */
  luce_tensor a_lse, b_lse; /* F32 [H, n] */
  luce_tensor out;          /* F32 [Dv, H, n]; may be a or b */
  const int32_t *n_rows;
} luce_merge_args;

/* ---- compressed cells ----
 * A group may keep one cell for `ratio` tokens of a sequence. Cell w stands for tokens w * ratio to w * ratio + ratio -
 * 1 and is there once the last of them has come, which its cell_pos names: so attention's rule holds for it as it is.
 * What it is made of, for each token a vector and the scores of its channels, lies in a group of cells with a window.
 * The ragged dimension of compress is the cells that this step completes, m. */

/* Channel by channel the mean of the vectors of some tokens, weighted by the softmax of their scores:
 *     out[d, j] = sum_t softmax_t(score[d', t] + bias[d', t % ratio]) * value[d', t].
 * Token t is cell t of sequence entry_seq[j]. With W = D, t runs over last[j] - ratio + 1 to last[j], and d' = d. With
 * W = 2D those tokens give their second half, d' = D + d, and the `ratio` tokens before them, where there are any,
 * their first half, d' = d. */
typedef struct luce_compress_args {
  luce_tensor values;     /* F32 [W, page_size, 1, n_pages] */
  luce_tensor scores;     /* F32 [W, page_size, 1, n_pages] */
  luce_tensor bias;       /* F32 [W, ratio] */
  luce_tensor page_table; /* I32 [max_pages, n_seqs] */
  luce_tensor entry_seq;  /* I32 [m] */
  luce_tensor last;       /* I32 [m] */
  luce_tensor out;        /* F32 [D, m] */
  const int32_t *n_rows;
} luce_compress_args;

/* The k cells that a row looks at: of cells c <= row_cell[i] of its sequence those with the largest
 *     score(c) = sum_h weights[h, i] * max(0, q[:, h, i] . k_c),
 * the smaller cell among equals; all of them, where there are no more than k. A NaN counts as -inf. */
typedef struct luce_select_args {
  luce_tensor q;          /* F32 [D, H, n] */
  luce_tensor weights;    /* F32 [H, n] */
  luce_tensor k_pages;    /* [D, page_size, 1, n_pages], as for attention */
  luce_tensor page_table; /* I32 [max_pages, n_seqs] */
  luce_tensor row_seq;    /* I32 [n] */
  luce_tensor row_cell;   /* I32 [n]; -1: there are no cells yet */
  luce_tensor cells;      /* I32 [k, n]: ascending, then -1 */
  luce_tensor workspace;  /* U8, luce_workspace_bytes() */
  const int32_t *n_rows;
} luce_select_args;

/* ---- recurrent state ----
 * A layer keeps a state of fixed size for each sequence, in one of n_slots slots. The rows of sequence s = row_seq[i]
 * are adjacent and go on from the state in slot seq_slot[s]; -1: from a state of zeros. Row i comes after row
 * parents[i] of its sequence, which stands before it in the batch (-1: straight after that state); without parents,
 * after the row before it. So a prompt (a chain), a decoded token (one row) and a draft tree are one op.
 *
 * The state after row i is stored in slot out_slots[i]; -1: nowhere. What is not stored is forgotten: rows of a draft
 * leave no trace. A slot that is stored in is read by no other sequence of the step, and stored in once. Where it is
 * known only after the step which rows count, the *_commit op stores the same bits from what the step has kept. */

/* Causal depthwise convolution, silu(sum_k weight[k, c] * u_k[c]): u_{K-1} is x[:, i], u_{K-2} the input of its parent,
 * and so on up the tree and on into the state, which holds the last K-1 inputs, the oldest first. */
typedef struct luce_conv_args {
  luce_tensor x;         /* F32 [C, n] */
  luce_tensor weight;    /* F32 [K, C] */
  luce_tensor state;     /* F32 [C, K-1, n_slots] */
  luce_tensor row_seq;   /* I32 [n] */
  luce_tensor seq_slot;  /* I32 [n_seqs] */
  luce_tensor out_slots; /* I32 [n] */
  luce_tensor parents;   /* I32 [n], optional */
  luce_tensor out;       /* F32 [C, n] */
  const int32_t *n_rows;
} luce_conv_args;

/* Stores states of luce_conv, whose x was kept. */
typedef struct luce_conv_commit_args {
  luce_tensor x;         /* F32 [C, n] */
  luce_tensor state;     /* F32 [C, K-1, n_slots] */
  luce_tensor row_seq;   /* I32 [n] */
  luce_tensor seq_slot;  /* I32 [n_seqs] */
  luce_tensor out_slots; /* I32 [n] */
  luce_tensor parents;   /* I32 [n], optional */
  const int32_t *n_rows;
} luce_conv_commit_args;

typedef enum luce_head_order {
  LUCE_HEADS_TILED = 0,  /* value head h reads key head h % n_k */
  LUCE_HEADS_GROUPED = 1 /* value head h reads key head h / (n_v / n_k) */
} luce_head_order;

/* The gated delta rule. For value head h of row i, with q and k of its key head, S the state before the row,
 * g = a[h] * softplus(alpha[h, i] + dt[h]) and b = sigmoid(beta[h, i]):
 *     u = b (v - e^g S^T k),   out = scale (e^g S^T q + (k.q) u),   S' = e^g S + k u^T.
 * Over a path of rows that is, with G the sums of g along it and S0 the state in the slot,
 *     u_i   = b_i (v_i - e^{G_i} S0^T k_i - sum_{j in anc(i), j != i} e^{G_i-G_j} (k_j.k_i) u_j)
 *     out_i = scale (e^{G_i} S0^T q_i + sum_{j in anc(i)} e^{G_i-G_j} (k_j.q_i) u_j)
 *     S_m   = e^{G_m} S0 + sum_{j in anc(m)} e^{G_m-G_j} k_j u_j^T,
 * so S0 is read once for all rows of a sequence, whatever their tree. */
typedef struct luce_delta_args {
  luce_tensor q;         /* F32 [d, n_k, n] */
  luce_tensor k;         /* F32 [d, n_k, n] */
  luce_tensor v;         /* F32 [dv, n_v, n] */
  luce_tensor alpha;     /* F32 [r, n_v / r, n]: of head h at [h % r, h / r] */
  luce_tensor beta;      /* F32, as alpha */
  luce_tensor a;         /* F32 [n_v] */
  luce_tensor dt;        /* F32 [n_v] */
  luce_tensor state;     /* F32 [dv, d, n_v, n_slots] */
  luce_tensor row_seq;   /* I32 [n] */
  luce_tensor seq_slot;  /* I32 [n_seqs] */
  luce_tensor out_slots; /* I32 [n] */
  luce_tensor parents;   /* I32 [n], optional */
  luce_tensor update;    /* F32 [dv, n_v, n], optional: u of each row, for luce_delta_commit */
  luce_tensor out;       /* F32 [dv, n_v, n] */
  luce_tensor workspace; /* U8, luce_workspace_bytes() */
  float scale;
  int32_t order; /* luce_head_order */
  const int32_t *n_rows;
} luce_delta_args;

/* Stores states of luce_delta, whose k, alpha and update were kept. */
typedef struct luce_delta_commit_args {
  luce_tensor k;         /* F32 [d, n_k, n] */
  luce_tensor alpha;     /* F32 [r, n_v / r, n] */
  luce_tensor a;         /* F32 [n_v] */
  luce_tensor dt;        /* F32 [n_v] */
  luce_tensor update;    /* F32 [dv, n_v, n] */
  luce_tensor state;     /* F32 [dv, d, n_v, n_slots] */
  luce_tensor row_seq;   /* I32 [n] */
  luce_tensor seq_slot;  /* I32 [n_seqs] */
  luce_tensor out_slots; /* I32 [n] */
  luce_tensor parents;   /* I32 [n], optional */
  int32_t order;         /* luce_head_order */
  const int32_t *n_rows;
} luce_delta_commit_args;

/* out[:, i] = x[:, index[i]]. */
typedef struct luce_rows_args {
  luce_tensor x;         /* F32 [D, n] */
  luce_tensor index;     /* I32 [m] */
  luce_tensor out;       /* F32 [D, m] */
  const int32_t *n_rows; /* of index and out */
} luce_rows_args;

/* ---- mixture of experts ---- */

/* What makes probabilities p of the logits of all experts: GGUF's expert_gating_func. */
typedef enum luce_gating {
  LUCE_GATING_SOFTMAX = 1,
  LUCE_GATING_SIGMOID = 2,
  LUCE_GATING_SOFTMAX_CHOSEN = 3, /* p is the logits; the weights are the softmax of those chosen */
  LUCE_GATING_SQRT_SOFTPLUS = 4
} luce_gating;

/* Chooses k of N experts for each row: those with the largest p + bias, the largest first, the smaller id among equals.
 * With n_groups > 1 only from the n_groups_used best of n_groups runs of N / n_groups experts; a group is as good as
 * the sum of the two largest p + bias in it. With a table, the choice is table[:, tokens[i]] whatever the logits.
 * weights = scale * p of those chosen, first divided by max(their sum, floor) where floor > 0. A NaN counts as -inf. */
typedef struct luce_route_args {
  luce_tensor logits;  /* F32 [N, n] */
  luce_tensor bias;    /* F32 [N], optional: decides the choice, not the weights */
  luce_tensor table;   /* I32 [k, V], optional: the experts of each token id */
  luce_tensor tokens;  /* I32 [n], with a table; one outside of it is LUCE_FAULT_TOKEN, expert 0 with weight 0 */
  luce_tensor ids;     /* I32 [k, n] */
  luce_tensor weights; /* F32 [k, n] */
  int32_t gating;
  int32_t n_groups; /* 0 or 1: none */
  int32_t n_groups_used;
  float floor; /* 0: the weights are not divided */
  float scale;
  const int32_t *n_rows;
} luce_route_args;

/* out[j, e, i] = scale[x] * sum_k weight[k, j, x] * x[k, e, i], where x = ids[e, i]. Rows are grouped by expert:
 * what they need is read once, what none of them needs not at all. */
typedef struct luce_expert_matmul_args {
  luce_tensor weight;    /* [K, N, n_expert], LUCE_ROWS; quantised types meet Q8_A, F32/F16/BF16 meet F32 */
  luce_tensor x;         /* F32 or Q8_A [K, n], the same for all experts of a row, or [K * k, n], one after the other */
  luce_tensor ids;       /* I32 [k, n]; one outside the weight is LUCE_FAULT_ROW, its output 0 */
  luce_tensor scale;     /* F32 [n_expert], optional */
  luce_tensor out;       /* F32 [N * k, n]: N values of each expert of a row */
  luce_tensor workspace; /* U8, luce_workspace_bytes() */
  const int32_t *n_rows;
} luce_expert_matmul_args;

/* out[:, i] = sum_e weights[e, i] * x[:, e, i] + add[:, i], in the order of e. */
typedef struct luce_combine_args {
  luce_tensor x;       /* F32 [D * k, n] */
  luce_tensor weights; /* F32 [k, n] */
  luce_tensor add;     /* F32 [D, n], optional; may be out itself */
  luce_tensor out;     /* F32 [D, n] */
  const int32_t *n_rows;
} luce_combine_args;

/* ---- hyper-connections ----
 * The residual is N streams of E values for each row. A sublayer reads a weighted sum of them (luce_combine), and what
 * it makes goes back to all of them, mixed. */

/* Weights of N streams from logits [N + N + N * N]: with l = logits * scale of their part + base,
 *     pre[s] = sigmoid(l) + eps,   post[s] = 2 sigmoid(l),   mix[s, d] = softmax over d of l, + eps,
 * then mix, whose sums over s and over d are to be 1, is divided by its sums over s plus eps, and n_rounds - 1 times by
 * those over d plus eps and those over s plus eps. With logits [N] only pre is made. */
typedef struct luce_hyper_weights_args {
  luce_tensor logits; /* F32 [N + N + N * N, n] or [N, n]: pre, post, mix (d runs first) */
  luce_tensor base;   /* F32, as many as a row of logits */
  luce_tensor scale;  /* F32 [3]: of pre, post, mix; or [1] */
  luce_tensor out;    /* F32, as logits, in the same order */
  float eps;
  int32_t n_rounds;
  const int32_t *n_rows;
} luce_hyper_weights_args;

/* out[:, d, i] = post[d, i] * y[:, i] + sum_s mix[s, d] * x[:, s, i]. */
typedef struct luce_hyper_mix_args {
  luce_tensor x;       /* F32 [E, N, n] */
  luce_tensor y;       /* F32 [E, n] */
  luce_tensor weights; /* F32 [N + N + N * N, n], of luce_hyper_weights */
  luce_tensor out;     /* F32 [E, N, n]; may be x */
  const int32_t *n_rows;
} luce_hyper_mix_args;

/* ---- sampling ---- */

/* counts[v, slot]: how often token v was generated (low 30 bits) and whether the prompt holds it (bit 30).
 * For each i: tokens[i] < 0 clears the slot's row, else amount 0 marks the token as of the prompt and any other
 * amount is added to its count. */
typedef struct luce_count_args {
  luce_tensor counts; /* I32 [V, n_slots] */
  luce_tensor slots;  /* I32 [n] */
  luce_tensor tokens; /* I32 [n] */
  luce_tensor amount; /* I32 [n] */
  const int32_t *n_rows;
} luce_count_args;

#define LUCE_COUNT_PROMPT (1 << 30)

/* What one row of logits is sampled with. */
typedef struct luce_sample_row {
  uint64_t seed;
  int32_t position;   /* of the token that is drawn, absolute */
  int32_t choice;     /* index among the n choices of a request */
  int32_t slot;       /* row of counts; -1: no penalties */
  int32_t parent;     /* row whose token came just before this one in a draft tree; -1: none */
  int32_t token;      /* this row's own input token: where parent is not -1 it is not in counts yet, and counts as
                         generated for this row and its descendants */
  int32_t bias_begin; /* [begin, end) in bias_ids and bias_values */
  int32_t bias_end;
  int32_t mask;             /* row of masks; -1: every token is allowed */
  float temperature;        /* 0: the largest logit, the smallest id among equals, whatever narrows */
  int32_t top_k;            /* 0: all */
  float typical_p;          /* 1: off */
  float top_p;              /* 1: off */
  float min_p;              /* 0: off */
  float repetition_penalty; /* 1: off; of prompt and generated tokens: divides positive logits, multiplies negative */
  float frequency_penalty;  /* 0: off; times how often it was generated, subtracted */
  float presence_penalty;   /* 0: off; subtracted once it was generated */
  int32_t n_top;            /* alternatives to report, at most top_ids.ne[0] */
  int32_t reserved;
} luce_sample_row;

/* Draws one token from each row. In this order: mask, bias, penalties; then the candidates are narrowed by top_k,
 * typical_p, top_p, min_p (each over the softmax of what is left, ties kept by smaller id); then the token is
 * argmax(logit / temperature + g), where g = -log(-log(u)) and u is made for (seed, choice, position, token id) by
 * Philox4x32-10: key = seed, counter = (id / 4, position, choice, 0), word id % 4, u = (word + 0.5) / 2^32. So the draw
 * for a token depends on nobody else, and is exact. logprob and the top_ alternatives (those that are finite) are of
 * the softmax of the logits as they came. A row that has LUCE_FAULT_LOGITS gets token 0 and logprob -inf. */
typedef struct luce_sample_args {
  luce_tensor logits;       /* F32 [V, m] */
  luce_tensor rows;         /* U8: luce_sample_row [m] */
  luce_tensor counts;       /* I32 [V, n_slots], optional */
  luce_tensor masks;        /* I32 [(V + 31) / 32, n_masks], optional; bit v % 32 of word v / 32: token v is allowed */
  luce_tensor bias_ids;     /* I32 [n_bias], optional */
  luce_tensor bias_values;  /* F32 [n_bias], optional */
  luce_tensor token;        /* I32 [m] */
  luce_tensor logprob;      /* F32 [m] */
  luce_tensor top_ids;      /* I32 [n_top, m], optional; unused entries -1 */
  luce_tensor top_logprobs; /* F32 [n_top, m], optional */
  luce_tensor workspace;    /* U8, luce_workspace_bytes() */
  const int32_t *n_rows;
} luce_sample_args;

/* What a decoding row carries from step to step on the device. */
typedef struct luce_row_state {
  int32_t position; /* of the next token */
  int32_t n_left;   /* tokens it may still emit */
  int32_t finish;   /* luce_finish: once not 0, the row is frozen */
  int32_t n_stop;   /* stop ids it has in stop_ids[:, slot] */
  int32_t n_forced; /* tokens queued in forced[:, slot], taken before any that is sampled */
  int32_t forced_head;
} luce_row_state;

typedef enum luce_finish { LUCE_RUNNING = 0, LUCE_STOP = 1, LUCE_LENGTH = 2 } luce_finish;

/* Emits one token from each row that is not frozen: the next forced one, else token[i]; then moves its state on and
 * freezes it at a stop id or at its limit. emitted[i] is -1 for a frozen row. */
typedef struct luce_advance_args {
  luce_tensor token;    /* I32 [m], from luce_sample */
  luce_tensor slots;    /* I32 [m]: the row's state; -1: none, emitted as sampled */
  luce_tensor state;    /* U8: luce_row_state [n_slots] */
  luce_tensor stop_ids; /* I32 [max_stop, n_slots] */
  luce_tensor forced;   /* I32 [max_forced, n_slots] */
  luce_tensor emitted;  /* I32 [m] */
  const int32_t *n_rows;
} luce_advance_args;

/* Work inside a step that the host does: raises box[0] to its next ticket and waits until box[1] has reached it.
 * luce_mailbox_serve() answers it from a thread of the library. */
typedef struct luce_mailbox_args {
  luce_tensor box; /* I32 [2]: asked, answered; pinned host memory */
  float timeout_s; /* then LUCE_FAULT_MAILBOX */
} luce_mailbox_args;

typedef struct luce_call {
  int32_t op; /* luce_op */
  const void *args;
} luce_call;

/* Starts a thread that, at each ticket of `box`, runs the calls on `context` (of the CPU library) and answers. */
LUCE_API luce_status luce_mailbox_serve(luce_context *context, int32_t *box, const luce_call *calls, int32_t n_calls);
/* Ends that thread. */
LUCE_API void luce_mailbox_stop(luce_context *context, int32_t *box);

/* Workspace that `op` needs with these arguments (upper bounds count, data is not read). */
LUCE_API luce_status luce_workspace_bytes(luce_context *context, int32_t op, const void *args, int64_t *out_bytes);

/* Runs the calls in order. At a failure stops; luce_error() names the op and its index. */
LUCE_API luce_status luce_run(luce_context *context, const luce_call *calls, int32_t n_calls);

#define LUCE_OP_DECLARE(name) LUCE_API luce_status luce_##name(luce_context *context, const luce_##name##_args *args);
LUCE_OPS(LUCE_OP_DECLARE)
#undef LUCE_OP_DECLARE

#ifdef __cplusplus
}
#endif

#endif /* LUCE_H */
