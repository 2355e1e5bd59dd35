//! The positions of the rows of a batch: members, placements, block tables and angles, the same for decoding
//! and encoding.

use kvasir_codec::ScopeView;
use kvasir_kernels::{AngleParams, Kernel, Member, NONE, PageParams, Placement, record_bytes};
use kvasir_types::ModelSpec;

use crate::{
    CudaError, Device, DeviceError, DeviceMemory, PagedKv, Work,
    queue::Queue,
    resident::{Frequencies, rope_shapes},
};

/// On the host, while a batch is built.
#[derive(Debug, Default)]
pub(crate) struct PagingTables {
    pub(crate) placements: Vec<Placement>,
    pub(crate) members: Vec<Member>,
    pub(crate) blocks: Vec<i32>,
    pub(crate) positions: Vec<u64>,
    /// First member of each scope.
    pub(crate) scope_members: Vec<u32>,
}

impl PagingTables {
    /// The members of all scopes; those that `pages` lack are another rank's.
    pub(crate) fn new<'a>(views: impl Iterator<Item = ScopeView<'a>>, pages: Option<&PagedKv>) -> Self {
        let mut tables = Self::default();
        for view in views {
            tables.scope_members.push(tables.members.len() as u32);
            tables.members.extend(view.members.iter().map(|member| {
                let found = pages.and_then(|pages| pages.place(member));
                let (plane, head) = found.map_or((NONE, 0), |(plane, head)| (plane as u32, head));
                let rope = member.rope.map_or(NONE, |rope| rope as u32);
                Member { start: member.start as u32, dim: member.dim as u32, plane, head, rope }
            }));
        }
        tables
    }

    /// Members from the first of a scope on.
    pub(crate) fn members_from(&self, scope: usize) -> &[Member] {
        &self.members[self.scope_members[scope] as usize..]
    }
}

/// On the device.
#[derive(Debug)]
pub(crate) struct PagingBuffers<M> {
    placements: M,
    members: M,
    planes: M,
    blocks: M,
    ropes: M,
    positions: M,
    angles: M,
    rows: usize,
}

impl<M: DeviceMemory> PagingBuffers<M> {
    /// Without pages nothing is rotated, and no angles are made.
    pub(crate) fn new<D: Device<Memory = M>>(
        device: &D,
        tables: &PagingTables,
        pages: Option<&PagedKv>,
        spec: &ModelSpec,
    ) -> Result<Self, CudaError> {
        let ropes = rope_shapes(spec);
        let columns: usize = ropes.iter().map(|rope| rope.pairs as usize).sum();
        let planes = pages.map(PagedKv::records).transpose()?.unwrap_or_default();
        let positions = if pages.is_some() { &tables.positions[..] } else { &[] };
        Ok(Self {
            placements: device.upload("placements", &record_bytes(&tables.placements))?,
            members: device.upload("members", &record_bytes(&tables.members))?,
            planes: device.upload("planes", &record_bytes(&planes))?,
            blocks: device.upload("blocks", &record_bytes(&tables.blocks))?,
            ropes: device.upload("ropes", &record_bytes(&ropes))?,
            positions: device.upload("positions", &record_bytes(positions))?,
            angles: device.allocate("angles", positions.len() * columns * 8)?,
            rows: positions.len(),
        })
    }

    /// Bytes of all arrays.
    pub(crate) fn size(&self) -> usize {
        let Self { placements, members, planes, blocks, ropes, positions, angles, rows: _ } = self;
        let all = [placements, members, planes, blocks, ropes, positions, angles];
        all.into_iter().map(DeviceMemory::bytes).sum()
    }

    /// For kernels, with a profile's `elements`.
    pub(crate) fn params(
        &self,
        elements: &M,
        frequencies: &Frequencies<M>,
        tile_columns: usize,
    ) -> PageParams {
        PageParams {
            placements: self.placements.address(),
            elements: elements.address(),
            members: self.members.address(),
            planes: self.planes.address(),
            blocks: self.blocks.address(),
            ropes: self.ropes.address(),
            angles: self.angles.address(),
            angle_columns: frequencies.columns,
            tile_columns: tile_columns as u32,
        }
    }

    /// Makes the angles of all positions.
    pub(crate) fn launch_angles<D: Device<Memory = M>>(
        &self,
        queue: &Queue<'_, D>,
        frequencies: &Frequencies<M>,
    ) -> Result<(), DeviceError> {
        let count = self.rows * frequencies.columns as usize;
        if count == 0 {
            return Ok(());
        }
        let params = AngleParams {
            positions: self.positions.address(),
            frequencies: frequencies.memory.address(),
            angles: self.angles.address(),
            rows: self.rows as u32,
            columns: frequencies.columns,
        };
        queue.launch(Kernel::Angles, Work::Warps(count.div_ceil(32)), 0, &params)
    }
}
