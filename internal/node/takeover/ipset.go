// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// setTimeout is how long a set may still be in use after the rules are gone: the kernel
// lets go of those of nf_tables a little later.
const setTimeout = 2 * time.Second

// removeSets removes the ipsets of IPVS mode, those that there are.
func removeSets() error {
	var errs []error
	deadline := time.Now().Add(setTimeout)
	for _, prefix := range []string{"KUBE-", "KUBE-6-"} {
		for _, name := range ipsets {
			name = prefix + name
			switch err := destroySet(name[:min(maxSetName, len(name))], deadline); {
			case err == nil || errors.Is(err, unix.ENOENT):
			case isMissing(err): // no ipsets in this kernel
				return nil
			default:
				errs = append(errs, fmt.Errorf("removing ipset %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// destroySet removes a set, and waits for that while rules use it.
func destroySet(name string, deadline time.Time) error {
	for {
		err := netlink.IpsetDestroy(name)
		if !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
