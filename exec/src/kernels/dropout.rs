use burn::tensor::{Device, Tensor, TensorData};
#[derive(Clone, Copy, Debug)]
pub struct Dropout { pub key: u64, pub rate: f32 }
#[derive(Clone, Debug)]
pub struct Rows { pub ids: Vec<u64>, pub width: usize }
impl Dropout {
    pub fn factor(&self, id: u64) -> f32 {
        let mut z = (self.key ^ id.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let u = (z >> 40) as f32 / (1u64 << 24) as f32;
        if u < self.rate { 0.0 } else { 1.0 / (1.0 - self.rate) }
    }
    pub fn mask(&self, rows: &Rows, device: &Device) -> Tensor<2> {
        let w = rows.width;
        let v: Vec<f32> = rows.ids.iter().flat_map(|r| (0..w).map(move |c| self.factor(r * w as u64 + c as u64))).collect();
        Tensor::from_data(TensorData::new(v, [rows.ids.len(), w]), device)
    }
}
