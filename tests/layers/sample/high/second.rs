pub struct Second;
