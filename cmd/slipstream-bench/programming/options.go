// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// SyncOptions say what [Sync] measures. Their JSON is part of its result.
type SyncOptions struct {
	Services    int    `json:"services"`
	Endpoints   int    `json:"endpoints_per_service"` // in each address family
	External    int    `json:"external_percent"`      // of the Services, with all that External Services have
	Family      string `json:"family"`                // one of Families
	Mode        string `json:"mode"`                  // one of Modes
	Repetitions int    `json:"repetitions"`           // of each kind of change, in each run
	Runs        int    `json:"runs"`                  // of everything, each in new processes
	Seed        uint64 `json:"seed"`
	Baseline    string `json:"baseline"` // one of Baselines

	// BaselineTimeout bounds one call of the baseline's command, and the time that
	// is spent on repeating changes with it. 0 is without bound.
	BaselineTimeout time.Duration `json:"baseline_timeout_ns"`

	// Verify makes each system compare what the kernel has in the end with
	// what was meant. Reading the kernel's sets back takes a time that is
	// quadratic in their size.
	Verify bool `json:"verify"`

	// ProfileDir is where CPU and heap profiles of Slipstream's steps go;
	// empty for none. Profiling costs a little itself.
	ProfileDir string `json:"profile_dir,omitempty"`
}

// The values of SyncOptions.Baseline.
const (
	BaselineAuto = "auto" // on for up to autoBaseline endpoints
	BaselineOn   = "on"
	BaselineOff  = "off"
)

// Baselines lists the values of SyncOptions.Baseline.
var Baselines = []string{BaselineAuto, BaselineOn, BaselineOff}

// autoBaseline is the number of endpoints above which the baseline takes minutes.
const autoBaseline = 300_000

// The values of SyncOptions.Family.
const (
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
	FamilyDual = "dual"
)

// Families lists the values of SyncOptions.Family.
var Families = []string{FamilyIPv4, FamilyIPv6, FamilyDual}

// The limits follow from the address ranges of the generator (see address.go),
// with room for the Services and endpoints that changes add.
const (
	maxServices         = 1_000_000
	maxEndpoints        = 65_536 // of one Service; a pool's limit
	maxServiceEndpoints = 12_000_000
	maxRepetitions      = 1_000_000 / 8
)

// Validate finds values that cannot be measured; it names them as flags.
func (o *SyncOptions) Validate() error {
	number := func(flag string, n, most int) error {
		if n < 1 || n > most {
			return fmt.Errorf("--%s: must be 1 to %d", flag, most)
		}
		return nil
	}
	oneOf := func(flag, value string, all []string) error {
		if !slices.Contains(all, value) {
			return fmt.Errorf("--%s: %q is none of %s", flag, value, strings.Join(all, ", "))
		}
		return nil
	}
	for _, err := range []error{
		number("services", o.Services, maxServices-maxRepetitions),
		number("endpoints", o.Endpoints, maxEndpoints),
		external(o),
		number("repetitions", o.Repetitions, maxRepetitions),
		number("runs", o.Runs, 1000),
		oneOf("family", o.Family, Families),
		oneOf("mode", o.Mode, Modes()),
		oneOf("baseline", o.Baseline, Baselines),
	} {
		if err != nil {
			return err
		}
	}
	if n := o.Services * o.Endpoints; n > maxServiceEndpoints {
		return fmt.Errorf("--endpoints: %d Services of %d endpoints are %d in all, more than %d", o.Services, o.Endpoints, n, maxServiceEndpoints)
	}
	return nil
}

// maxExternal is how many Services can have a NodePort.
const maxExternal = 30_000

func external(o *SyncOptions) error {
	if o.External < 0 || o.External > 100 {
		return fmt.Errorf("--external: must be 0 to 100")
	}
	if n := o.Services * o.External / 100; n > maxExternal {
		return fmt.Errorf("--external: %d Services would have a NodePort, more than %d", n, maxExternal)
	}
	return nil
}

// families says which families the Services have.
func (o *SyncOptions) families() []family {
	switch o.Family {
	case FamilyIPv4:
		return []family{ipv4}
	case FamilyIPv6:
		return []family{ipv6}
	}
	return []family{ipv4, ipv6}
}
