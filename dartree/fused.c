/* What drafting does between the models: see fused.py, which builds and calls this.

   marginals() takes the best tokens of each depth. begin() prepares a block for a correction head;
   step() then reads R entries of a growth (token, row of the path above, path score), moves the
   head's state along them and writes their best children as new entries. A later value replaces an
   earlier one only if it is better: equal ones go to the smaller id, or (row, candidate). */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A tile of ROWS x VECTORS sums and a row of VECTORS inputs stay in registers: 32 or 16 of them. */
#if defined(__AVX512F__)
#define LANES 16
#define ROWS 6
#define VECTORS 4
#elif defined(__AVX__)
#define LANES 8
#define ROWS 4
#define VECTORS 2
#else
#define LANES 4
#define ROWS 4
#define VECTORS 4
#endif
#define PANEL 64 /* columns of a matrix that lie together; all sizes are multiples of it */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef float four __attribute__((vector_size(16), aligned(4)));

/* Sizes and weights of a head. Domino: `state` is G; Markov: it is 0, without `first` and `joint`. */
typedef struct {
    int64_t state, middle, vocab, prefix; /* G, M, V, depths that stay uncorrected */
    int64_t hidden;                       /* H */
    const float *first;                   /* W1's part for z, [H, M] in panels */
    const float *joint;                   /* W1's and the GRU's for the state, [G, M + 3G] in panels */
    const float *inputs;                  /* [V, 3G] GRU inputs of each token; Markov: W1 [V, M] */
    const float *output;                  /* [V, M] */
} Head;

/* A block and what was grown on it so far. */
typedef struct {
    const float *hidden;       /* [n, H] what the drafter gives; Markov: none */
    const float *base;         /* [n, V] base logits */
    int64_t depths;            /* D */
    int64_t count;             /* K */
    float *z;                  /* [D, M] W1's z part, made by begin() */
    int64_t *candidates;       /* [D, K] ids, made by begin(); NULL: a chain over all, K = V */
    int64_t whole;             /* whether scores are normalised over all V tokens */
    float temperature;
    float *memory;             /* rows of `width` floats: state [G], W1's part [M], GRU's part [3G] */
    int64_t *tokens, *rows;    /* entries: token id, row of the path above in its level, */
    int64_t *parents;          /* number of that path's entry, */
    float *scores;             /* path score; without `candidates` the logit */
    float *logits;             /* [K or V] of the last row, for whoever wants them */
} Growth;

static int64_t width(const Head *head)
{
    return head->middle + 4 * head->state;
}

/* out [rows, columns] = a [rows, inner] b [inner, columns], `step` and `stride` floats between rows
   of a and of out; b as columns / PANEL panels [inner, PANEL]. */
static inline __attribute__((always_inline)) void tile(
    const int rows, const float *a, int64_t step, const float *b, float *out, int64_t stride,
    int64_t inner, int64_t columns)
{
    for (int64_t c = 0; c < columns; c += VECTORS * LANES) {
        const float *panel = b + c / PANEL * PANEL * inner + c % PANEL;
        lanes sums[ROWS][VECTORS] = {0}, right[VECTORS];
        for (int64_t k = 0; k < inner; k++) {
            for (int j = 0; j < VECTORS; j++)
                right[j] = ((const lanes *)(panel + k * PANEL))[j];
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < VECTORS; j++)
                    sums[i][j] += a[i * step + k] * right[j];
        }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < VECTORS; j++)
                ((lanes *)(out + i * stride + c))[j] = sums[i][j];
    }
}

static void product(
    const float *a, int64_t step, const float *b, float *out, int64_t stride, int64_t rows,
    int64_t inner, int64_t columns)
{
    for (; rows >= ROWS; rows -= ROWS, a += ROWS * step, out += ROWS * stride)
        tile(ROWS, a, step, b, out, stride, inner, columns);
    for (; rows >= 2; rows -= 2, a += 2 * step, out += 2 * stride)
        tile(2, a, step, b, out, stride, inner, columns);
    for (; rows > 0; rows--, a += step, out += stride)
        tile(1, a, step, b, out, stride, inner, columns);
}

static inline float dot(const float *a, const float *b, int64_t count)
{
    lanes even = {0}, odd = {0}; /* two sums, so that one need not wait for the other */
    for (int64_t i = 0; i < count; i += 2 * LANES) {
        even += *(const lanes *)(a + i) * *(const lanes *)(b + i);
        odd += *(const lanes *)(a + i + LANES) * *(const lanes *)(b + i + LANES);
    }
    even += odd;
    four parts[LANES / 4];
    memcpy(parts, &even, sizeof parts);
    for (int i = 1; i < LANES / 4; i++)
        parts[0] += parts[i];
    return (parts[0][0] + parts[0][1]) + (parts[0][2] + parts[0][3]);
}

/* e^x to 2 units in the last place, for x in [-87, 88] and NaN; below as at -87, above infinite:
   0 times infinity must be NaN behind a sigmoid, too. Loops over it become vector code, which calls
   of expf() do not. x = n ln 2 + r; the coefficients of e^r are those of Cephes' expf. */
static inline float exponential(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: what is added and taken off rounds to integers */
    x = x < -87.0f ? -87.0f : x;
    float n = x * 1.44269504f + round;
    uint32_t bits;
    memcpy(&bits, &n, 4);
    n -= round;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f, p = 1.9875691500e-4f, power;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    bits = (bits + 127) << 23;
    memcpy(&power, &bits, 4);
    return x > 88.0f ? INFINITY : (p * r * r + r + 1.0f) * power;
}

static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + exponential(-x));
}

static inline float hyperbolic_tangent(float x)
{
    return 1.0f - 2.0f / (1.0f + exponential(2.0f * x));
}

/* The states [count, width] of entries whose paths above have the states `from`. */
static void advance(
    const Head *head, const float *from, const int64_t *rows, const int64_t *tokens, int64_t count,
    float *to)
{
    int64_t g = head->state, m = head->middle, stride = width(head);
    for (int64_t r = 0; r < count; r++) {
        if (g == 0) { /* Markov: the last token is all the state there is */
            memcpy(to + r * stride, head->inputs + tokens[r] * m, 4 * m);
            continue;
        }
        const float *input = head->inputs + tokens[r] * 3 * g;
        const float *state = from + rows[r] * stride, *gru = state + g + m;
        float *out = to + r * stride;
        for (int64_t i = 0; i < g; i++) {
            float reset = sigmoid(input[i] + gru[i]);
            float update = sigmoid(input[g + i] + gru[g + i]);
            float fresh = hyperbolic_tangent(input[2 * g + i] + reset * gru[2 * g + i]);
            out[i] = fresh + update * (state[i] - fresh);
        }
    }
    if (g)
        product(to, stride, head->joint, to + g, stride, count, g, m + 3 * g);
}

/* Corrected logits over the temperature, [count], of the children of one path. */
static void correct(
    const Head *head, const Growth *growth, int64_t depth, const float *state, const int64_t *ids,
    int64_t count, float *middle, float *logits)
{
    int64_t m = head->middle;
    const float *base = growth->base + (depth - 1) * head->vocab;
    const float *feature = state; /* Markov: W1[last token] as it is */
    if (head->state) {
        const float *z = growth->z + (depth - 1) * m;
        for (int64_t i = 0; i < m; i++) {
            float x = state[head->state + i] + z[i];
            middle[i] = x * sigmoid(x);
        }
        feature = middle;
    }
    for (int64_t c = 0; c < count; c++) {
        int64_t id = ids ? ids[c] : c;
        float bias = depth <= head->prefix ? 0 : dot(feature, head->output + id * m, m);
        logits[c] = (base[id] + bias) / growth->temperature;
    }
}

/* log sum e^((x - largest) / temperature) over [count], and the largest, apart: added to one of
   millions it would be lost. NaN where one is NaN or +inf, and where all are -inf. Partial sums
   side by side become vector code, and are more exact than a long one. */
static float log_sum(const float *logits, int64_t count, float temperature, float *most)
{
    float largest = -INFINITY, parts[LANES] = {0}, sum = 0, scale = 1.0f / temperature;
    for (int64_t c = 0; c < count; c++)
        largest = logits[c] > largest ? logits[c] : largest;
    int64_t whole = count - count % LANES;
    for (int64_t c = 0; c < whole; c += LANES)
        for (int i = 0; i < LANES; i++)
            parts[i] += exponential((logits[c + i] - largest) * scale);
    for (int64_t c = whole; c < count; c++)
        parts[c - whole] += exponential((logits[c] - largest) * scale);
    for (int i = 0; i < LANES; i++)
        sum += parts[i];
    *most = largest;
    return logf(sum);
}

/* The `rank`-th largest of values [count], from 1; they are left in another order (quickselect). */
static float nth_largest(float *values, int64_t count, int64_t rank)
{
    int64_t low = 0, high = count - 1;
    while (low < high) {
        float pivot = values[(low + high) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] > pivot)
                i++;
            while (values[j] < pivot)
                j--;
            if (i <= j) {
                float other = values[i];
                values[i++] = values[j];
                values[j--] = other;
            }
        }
        if (rank - 1 <= j)
            high = j;
        else if (rank - 1 >= i)
            low = i;
        else
            break;
    }
    return values[rank - 1];
}

/* A value below which none of the `quota` best of values [total] lies: the maxima of 4 quota
   columns are so many values, and their quota-th largest is close to the one that is looked for. */
static float lower_bound(const float *values, int64_t total, int64_t quota)
{
    int64_t columns = 4 * quota;
    float *largest = total < 2 * columns ? NULL : malloc(sizeof *largest * columns);
    if (!largest)
        return -INFINITY;
    memcpy(largest, values, sizeof *largest * columns);
    for (int64_t i = columns; i < total; i += columns) {
        int64_t some = total - i < columns ? total - i : columns;
        for (int64_t c = 0; c < some; c++)
            largest[c] = values[i + c] > largest[c] ? values[i + c] : largest[c];
    }
    float bound = nth_largest(largest, columns, quota);
    free(largest);
    return bound;
}

/* The `quota` best of values [total], best first, equal ones in order: the values and places. */
static void select_best(
    const float *values, int64_t total, int64_t quota, float *best, int64_t *places)
{
    int64_t kept = 0;
    /* Only what is above counts: a little below the bound, so that what equals it does. The next
       number below would be none to a processor that takes the smallest ones for 0. */
    float bound = lower_bound(values, total, quota);
    float bar = bound - fabsf(bound) * FLT_EPSILON - FLT_MIN;
    int all = bar == -INFINITY; /* then -INFINITY itself counts, too, until there are enough */
    for (int64_t i = 0; i < total; i++) {
        if (!all) { /* most values are none of the best: look at many together */
            for (; i + PANEL <= total; i += PANEL) {
                int better = 0;
                for (int j = 0; j < PANEL; j++)
                    better |= values[i + j] > bar;
                if (better)
                    break;
            }
            while (i < total && !(values[i] > bar))
                i++;
            if (i == total)
                return;
        }
        int64_t last = kept < quota ? kept++ : quota - 1, at = 0, end = last;
        while (at < end) { /* behind all that are as good */
            int64_t half = (at + end) / 2;
            if (best[half] < values[i])
                end = half;
            else
                at = half + 1;
        }
        memmove(best + at + 1, best + at, sizeof *best * (last - at));
        memmove(places + at + 1, places + at, sizeof *places * (last - at));
        best[at] = values[i];
        places[at] = i;
        if (kept == quota) {
            bar = best[quota - 1];
            all = 0;
        }
    }
}

/* The ids [rows, count] of the best of logits [rows, vocab], and their log-softmax over the
   vocabulary at a temperature. Returns 0; 1 where a row holds NaN or +inf, or -inf alone. */
int marginals(
    const float *logits, int64_t rows, int64_t vocab, int64_t count, float temperature,
    int64_t *ids, float *log_probs)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *row = logits + r * vocab;
        float *best = log_probs + r * count, largest;
        float all = log_sum(row, vocab, temperature, &largest);
        if (isnan(all))
            return 1;
        select_best(row, vocab, count, best, ids + r * count);
        for (int64_t c = 0; c < count; c++)
            best[c] = (best[c] - largest) / temperature - all;
    }
    return 0;
}

/* Candidates of all depths and W1's z part. Returns as step() does. */
int begin(const Head *head, const Growth *growth)
{
    int64_t depths = growth->depths, count = growth->count, vocab = head->vocab;
    if (head->state)
        product(growth->hidden, head->hidden, head->first, growth->z, head->middle, depths,
                head->hidden, head->middle);
    if (!growth->candidates)
        return 0;
    float *best = malloc(4 * count);
    if (!best)
        return 2;
    int failed = 0;
    for (int64_t r = 0; r < depths && !failed; r++) {
        const float *row = growth->base + r * vocab;
        for (int64_t v = 0; v < vocab; v++)
            failed |= !(row[v] < INFINITY);
        if (!failed)
            select_best(row, vocab, count, best, growth->candidates + r * count);
    }
    free(best);
    return failed;
}

/* Children at `depth` (from 1) of entries first..first + rows: the `quota` best, at most rows * K,
   become the entries from `next` on. States of the paths above lie from row `from` of the memory
   on, those of the entries go to the rows from `to` on.

   Returns 0; 1 where a row of logits holds NaN or +inf, or -inf alone (what was written is then
   of no use); 2 without memory. */
int step(
    const Head *head, const Growth *growth, int64_t depth, int64_t first, int64_t rows,
    int64_t from, int64_t to, int64_t next, int64_t quota)
{
    int64_t count = growth->count, m = head->middle, stride = width(head);
    const int64_t *ids = growth->candidates ? growth->candidates + (depth - 1) * count : NULL;
    float *paths = malloc(4 * (rows * count + m));
    if (!paths)
        return 2;
    float *middle = paths + rows * count, *states = growth->memory + to * stride;
    advance(head, growth->memory + from * stride, growth->rows + first, growth->tokens + first,
            rows, states);
    int failed = 0;
    for (int64_t r = 0; r < rows && !failed; r++) {
        float *path = paths + r * count, *state = states + r * stride, all, largest;
        if (growth->whole) {
            correct(head, growth, depth, state, NULL, head->vocab, middle, growth->logits);
            all = log_sum(growth->logits, head->vocab, 1, &largest);
            for (int64_t c = 0; c < count; c++)
                path[c] = growth->logits[ids ? ids[c] : c];
        } else {
            correct(head, growth, depth, state, ids, count, middle, path);
            all = log_sum(path, count, 1, &largest);
        }
        failed = isnan(all);
        if (!ids) /* a chain goes by logits: scores that were added up can be equal by rounding */
            continue;
        float above = growth->scores[first + r];
        for (int64_t c = 0; c < count; c++)
            path[c] = path[c] - largest - all + above;
    }
    int64_t *tokens = growth->tokens + next, *places = growth->rows + next;
    int64_t total = rows * count, kept = quota < total ? quota : total;
    if (!failed)
        select_best(paths, total, kept, growth->scores + next, places);
    for (int64_t i = 0; i < kept && !failed; i++) {
        int64_t c = places[i] % count;
        tokens[i] = ids ? ids[c] : c;
        places[i] /= count;
        growth->parents[next + i] = first + places[i];
    }
    free(paths);
    return failed;
}
