#include "world/net/wire.h"

#include <sodium.h>

/* `label` separates proofs and session keys. */
static void wire_derive(const unsigned char key[WIRE_KEY_BYTES], const char label[4],
                        enum wire_role role, const struct wire_hello *hello,
                        const unsigned char nonce[WIRE_NONCE_BYTES], unsigned char *out,
                        size_t out_bytes)
{
    unsigned char role_byte = (unsigned char)role;
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, WIRE_KEY_BYTES, out_bytes);
    crypto_generichash_update(&state, (const unsigned char *)label, 4);
    crypto_generichash_update(&state, &role_byte, 1);
    crypto_generichash_update(&state, (const unsigned char *)hello, sizeof *hello);
    crypto_generichash_update(&state, nonce, WIRE_NONCE_BYTES);
    crypto_generichash_final(&state, out, out_bytes);
}

static void derive_tag(const unsigned char key[WIRE_KEY_BYTES], const struct wire_hello *hello,
                       unsigned char tag[WIRE_TAG_BYTES])
{
    static const unsigned char label[] = "banyan hello";
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, WIRE_KEY_BYTES, WIRE_TAG_BYTES);
    crypto_generichash_update(&state, label, sizeof label);
    crypto_generichash_update(&state, (const unsigned char *)hello,
                              offsetof(struct wire_hello, tag));
    crypto_generichash_final(&state, tag, WIRE_TAG_BYTES);
}

void wire_tag(const unsigned char key[WIRE_KEY_BYTES], struct wire_hello *hello)
{
    derive_tag(key, hello, hello->tag);
}

bool wire_tag_is_right(const unsigned char key[WIRE_KEY_BYTES], const struct wire_hello *hello)
{
    unsigned char tag[WIRE_TAG_BYTES];
    derive_tag(key, hello, tag);
    return sodium_memcmp(tag, hello->tag, sizeof tag) == 0;
}

void wire_prove(const unsigned char key[WIRE_KEY_BYTES], enum wire_role role,
                const struct wire_hello *hello, const unsigned char nonce[WIRE_NONCE_BYTES],
                unsigned char proof[WIRE_PROOF_BYTES])
{
    wire_derive(key, "know", role, hello, nonce, proof, WIRE_PROOF_BYTES);
}

bool wire_proof_equal(const unsigned char a[WIRE_PROOF_BYTES],
                      const unsigned char b[WIRE_PROOF_BYTES])
{
    return sodium_memcmp(a, b, WIRE_PROOF_BYTES) == 0;
}

void wire_session_key(const unsigned char key[WIRE_KEY_BYTES], enum wire_role role,
                      const struct wire_hello *hello, const unsigned char nonce[WIRE_NONCE_BYTES],
                      unsigned char session_key[WIRE_KEY_BYTES])
{
    wire_derive(key, "talk", role, hello, nonce, session_key, WIRE_KEY_BYTES);
}
