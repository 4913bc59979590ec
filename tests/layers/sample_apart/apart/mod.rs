pub struct Apart;
