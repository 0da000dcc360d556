// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// passage counts the packets that a node has got, and those of them that its
// stack has forwarded. It shows whether the fast path did what it was to do:
// the kernel does not count as forwarded what it handles.
type passage struct {
	arrived, slow uint64
}

// passageOf counts now. Packets come between the two counts, so those of the slow path are
// counted last at the begin and first at the end: they are never more than all.
func passageOf(n *lab.Node, atEnd bool) (p passage, err error) {
	counts := []func() error{
		func() (err error) { p.arrived, err = arrived(&n.Machine); return err },
		func() error { return n.Do(func() (err error) { p.slow, err = forwarded(); return err }) },
	}
	if atEnd {
		slices.Reverse(counts)
	}
	for _, count := range counts {
		if err := count(); err != nil {
			return p, fmt.Errorf("%s: %w", n.Name(), err)
		}
	}
	return p, nil
}

// share is the part of the packets between two counts that took the slow path,
// from 0 to 1.
func (p passage) share(later passage) float64 {
	if later.arrived <= p.arrived {
		return 0
	}
	return float64(later.slow-p.slow) / float64(later.arrived-p.arrived)
}

// forwarded is how many packets the stack of the calling thread's namespace has
// forwarded.
func forwarded() (uint64, error) {
	v4, err := snmp4("/proc/thread-self/net/snmp", "Ip:", "ForwDatagrams")
	if err != nil {
		return 0, err
	}
	v6, err := snmp6("/proc/thread-self/net/snmp6", "Ip6OutForwDatagrams")
	return v4 + v6, err
}

// snmp4 reads a counter from lines in pairs: the names, and the values.
func snmp4(path, group, name string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var names []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != group {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, n := range names {
			if n == name && i < len(fields) {
				return strconv.ParseUint(fields[i], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("%s has no %s %s", path, group, name)
}

// snmp6 reads a counter from lines of a name and a value.
func snmp6(path, name string) (uint64, error) {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return 0, nil // no IPv6
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 2 && fields[0] == name {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}
