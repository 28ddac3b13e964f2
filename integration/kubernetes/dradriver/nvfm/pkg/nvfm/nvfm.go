// Package nvfm stands for NVIDIA's bindings of the fabric manager, which not every module proxy
// serves. The driver uses them only with its feature gate FabricManagerPartitioning, which is off
// here: every call fails.
package nvfm

// Return is a result of the fabric manager.
type Return int

// SUCCESS is the only result that the driver knows by name.
const SUCCESS Return = 0

func (Return) String() string { return "the fabric manager's bindings are not in this build" }

// Interface is the library.
type Interface struct{}

// LibraryOption and ConnectOption are what the driver passes.
type (
	LibraryOption     struct{}
	ConnectOption     struct{}
	FabricPartitionId uint32
)

// New returns a library that does not work.
func New(...LibraryOption) Interface { return Interface{} }

// WithLibraryPath and the others are options without effect.
func WithLibraryPath(string) LibraryOption { return LibraryOption{} }
func WithUnixSocket(string) ConnectOption  { return ConnectOption{} }
func WithAddress(string) ConnectOption     { return ConnectOption{} }
func WithTimeoutMs(uint32) ConnectOption   { return ConnectOption{} }

// Init and the other calls fail.
func (Interface) Init() Return                              { return 1 }
func (Interface) Shutdown() Return                          { return 1 }
func (Interface) Connect(...ConnectOption) (Handle, Return) { return Handle{}, 1 }

// Handle is a connection.
type Handle struct{}

func (Handle) Disconnect() Return { return 1 }
func (Handle) GetSupportedFabricPartitions() (FabricPartitionList, Return) {
	return FabricPartitionList{}, 1
}
func (Handle) ActivateFabricPartition(FabricPartitionId) Return   { return 1 }
func (Handle) DeactivateFabricPartition(FabricPartitionId) Return { return 1 }

// FabricPartitionList is the fabric manager's answer.
type FabricPartitionList struct {
	NumPartitions uint32
	PartitionInfo []struct {
		PartitionId, IsActive, NumGpus uint32
		GpuInfo                        []struct {
			PhysicalId                                             uint32
			Uuid, PciBusId                                         []int8
			NumNvLinksAvailable, MaxNumNvLinks, NvlinkLineRateMBps uint32
		}
	}
}
