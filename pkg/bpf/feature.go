package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
)

// MissingFeatureError says that a call failed because the kernel lacks something.
type MissingFeatureError struct {
	Feature string // "map type RingBuf"
	Err     error  // the failure of the call
}

// Error names the feature and what to do.
func (e *MissingFeatureError) Error() string {
	return fmt.Sprintf("the kernel has no %s (%v); run Linux 6.1 or newer", e.Feature, e.Err)
}

// Unwrap returns the failure of the call.
func (e *MissingFeatureError) Unwrap() error { return e.Err }

// explainMap looks whether err comes from a missing map type.
func explainMap(t ebpf.MapType, err error) error {
	if errors.Is(features.HaveMapType(t), ebpf.ErrNotSupported) {
		return &MissingFeatureError{"map type " + t.String(), err}
	}
	return err
}
