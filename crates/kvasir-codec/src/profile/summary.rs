//! The data that `kvasir profile inspect` shows.

use kvasir_types::{ModelId, ProfileHash};

use super::{Basis, CoefficientCoding, LevelNote, Predictor, Profile, Scope, TrainingNote, packed_bytes};

/// A profile in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileSummary {
    /// BLAKE3 of the file.
    pub hash: ProfileHash,
    /// The model.
    pub model_id: ModelId,
    /// Size of the file.
    pub profile_bytes: u64,
    /// Tokens stored exactly at the start of a context.
    pub exact_tokens: usize,
    /// Its origin.
    pub training: TrainingNote,
    /// Coarsest first.
    pub levels: Vec<LevelNote>,
    /// Alias tables of the bank.
    pub stage_tables: usize,
    /// Trit tables of the bank.
    pub trit_tables: usize,
    /// The scopes, in order.
    pub scopes: Vec<ScopeSummary>,
}

/// A scope in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct ScopeSummary {
    /// First and last layer.
    pub layers: (usize, usize),
    /// Which planes: `K`, `V` or `K+V`.
    pub planes: &'static str,
    /// Heads, over all layers and planes.
    pub heads: usize,
    /// KV elements per token.
    pub elements: usize,
    /// Coefficients per token.
    pub rank: usize,
    /// Coefficients present at each level.
    pub rank_by_level: Vec<usize>,
    /// `identity`, `trained` or `packed`.
    pub basis: &'static str,
    /// `mean`, `anchor-first` or `token`.
    pub predictor: &'static str,
    /// Bytes of basis and predictor.
    pub parameter_bytes: u64,
    /// Multiply-adds of decoding one token.
    pub decode_macs: u64,
    /// Rows of a packed basis by their bits an entry, from 1; empty for other bases.
    pub rows_by_bits: Vec<usize>,
    /// Loss that the scope's errors cause at each level.
    pub loss: Vec<f32>,
}

impl Profile {
    /// The profile in numbers, for people.
    pub fn summary(&self) -> ProfileSummary {
        ProfileSummary {
            hash: self.hash,
            model_id: self.model_id,
            profile_bytes: self.to_bytes().len() as u64,
            exact_tokens: self.exact_tokens,
            training: self.training.clone(),
            levels: self.levels.clone(),
            stage_tables: self.bank.stage_tables().len(),
            trit_tables: self.bank.trit_tables().len(),
            scopes: self.scopes.iter().map(|scope| summarise(scope, self.levels.len())).collect(),
        }
    }
}

fn summarise(scope: &Scope, level_count: usize) -> ScopeSummary {
    let layers = scope.members.iter().map(|m| m.layer);
    let has = |plane| scope.members.iter().any(|m| m.plane == plane);
    let (rank, elements) = (scope.rank(), scope.elements());
    let (basis, basis_bytes, basis_macs) = match &scope.basis {
        Basis::Identity => ("identity", 0, 0),
        Basis::Trained { synthesis, analysis, packed } => {
            let analysis = 2 * analysis.as_ref().map_or(0, Vec::len);
            match packed {
                None => ("trained", 2 * synthesis.len() + analysis, rank * elements),
                Some(packed) => ("packed", packed.codes.len() + 5 * rank + analysis, rank * elements),
            }
        }
    };
    let (predictor, predictor_bytes, predictor_macs) = match &scope.predictor {
        Predictor::Mean => ("mean", 0, 0),
        Predictor::AnchorFirst { .. } => ("anchor-first", 0, 0),
        Predictor::Token(token) => {
            let table =
                |which: usize| token.vocabulary * packed_bytes(token.factors[which], token.table_bits[which]);
            let factors = token.factor_count();
            let matrix: usize = token.matrix_bits.iter().map(|bits| packed_bytes(factors, *bits) + 2).sum();
            ("token", table(0) + table(1) + matrix, token.matrix.len())
        }
    };
    let present = |level: usize| {
        let is_in = |c: &&CoefficientCoding| i32::from(c.entry) <= level as i32;
        scope.coding.iter().filter(is_in).count()
    };
    ScopeSummary {
        layers: (layers.clone().min().unwrap_or(0), layers.max().unwrap_or(0)),
        planes: match (has(kvasir_types::Plane::K), has(kvasir_types::Plane::V)) {
            (true, true) => "K+V",
            (true, false) => "K",
            (false, _) => "V",
        },
        heads: scope.members.len(),
        elements,
        rank,
        rank_by_level: (0..level_count).map(present).collect(),
        basis,
        predictor,
        parameter_bytes: (basis_bytes + predictor_bytes) as u64,
        decode_macs: (basis_macs + predictor_macs) as u64,
        rows_by_bits: rows_by_bits(&scope.basis),
        loss: scope.loss.clone(),
    }
}

fn rows_by_bits(basis: &Basis) -> Vec<usize> {
    let Basis::Trained { packed: Some(packed), .. } = basis else { return Vec::new() };
    let most = packed.bits.iter().copied().max().unwrap_or(0);
    (1..=most).map(|bits| packed.bits.iter().filter(|b| **b == bits).count()).collect()
}
