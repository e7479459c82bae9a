//! Seeded draws that are the same on every platform: 64-bit words of ChaCha8, turned into numbers here.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// One stream of draws.
pub(crate) struct Draws(ChaCha8Rng);

impl Draws {
    /// Stream number `stream` of `seed`. Streams of one seed have nothing in common.
    pub(crate) fn new(seed: u64, stream: u64) -> Draws {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(stream);
        Draws(rng)
    }

    /// 64 random bits.
    fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 128 random bits.
    pub(crate) fn id(&mut self) -> [u64; 2] {
        [self.bits(), self.bits()]
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with the given probability. Draws even when that is 0 or 1.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Uniform in 0..bound; 0 when the bound is 0.
    pub(crate) fn below(&mut self, bound: i64) -> i64 {
        (self.unit() * bound as f64) as i64
    }

    /// Uniform index of a table of `len` entries.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        (self.unit() * len as f64) as usize
    }
}
