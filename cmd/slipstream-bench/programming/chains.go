// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
)

// chains is the baseline, measured: the same Services as rules in the shape of
// kube-proxy's, in its mode of the same name, programmed by the command that it uses.
type chains struct {
	cluster *cluster
	shape   shape
	peak    int64
}

// shape is rules of one kind, and how they come into the kernel.
type shape interface {
	// all loads everything, as one transaction.
	all() (toolRun, error)
	// replace loads the replacement of one endpoint, which the cluster has
	// made already.
	replace(replacement) (toolRun, error)
	// addresses are those of Services and, for each Service, of endpoints, that the
	// kernel has.
	addresses() ([]string, error)
}

// newChains fails when there is no baseline here, and says why.
func newChains(o *SyncOptions) (*chains, error) {
	c := &chains{cluster: newCluster(o)}
	var err error
	if v, ok := iptablesVariant(o.Mode); ok {
		c.shape, err = newListShape(c.cluster, o, v)
	} else {
		c.shape, err = newMapShape(c.cluster, o)
	}
	if err != nil {
		return nil, err
	}
	// The commands are to end with this process; the kernel goes by the
	// thread that has started them.
	runtime.LockOSThread()
	return c, nil
}

func (c *chains) close() error { return nil }

func (c *chains) do(q request) (r reply, err error) {
	switch q.Step {
	case stepCold:
		r.Load, err = c.load(c.shape.all)
	case stepSplit:
		inParts, ok := c.shape.(interface{ parts() (toolRun, error) })
		if !ok {
			return r, errors.New("it is not loaded in parts")
		}
		r.Load, err = c.load(inParts.parts)
	case stepReplace:
		all := &samples{}
		r.Series = map[string]*samples{endpointReplaced: all}
		for range q.Repetitions {
			change, _ := c.cluster.replacePod()
			var run toolRun
			if run, err = c.shape.replace(change); err != nil {
				break
			}
			c.peak = max(c.peak, run.peak)
			all.append(&samples{Took: []time.Duration{run.took}, Elements: []int{0}, Bytes: []int{run.bytes}, CPU: run.cpu})
		}
	case stepMemory:
		r.Memory = &Memory{PeakBytes: c.peak}
	case stepVerify:
		err = c.verify()
	default:
		err = fmt.Errorf("no step %q", q.Step)
	}
	if errors.Is(err, errTimeout) {
		return reply{Unavailable: err.Error()}, nil
	}
	return r, err
}

func (c *chains) load(run func() (toolRun, error)) (*Load, error) {
	r, err := run()
	c.peak = max(c.peak, r.peak)
	return &Load{TotalMS: millis(r.took), CPUMS: millis(r.cpu), Bytes: r.bytes}, err
}

// verify compares the addresses that the kernel has with those that were meant.
func (c *chains) verify() error {
	var want []string
	for key, target := range c.cluster.content().Frontends {
		want = append(want, key.Addr().String())
		for _, b := range target.Backends {
			want = append(want, b.String())
		}
	}
	slices.Sort(want)
	// The kernel leaves elements out while it resizes a set, for some milliseconds.
	diff, err := dataplane.Lasting(context.Background(), func() (string, error) {
		got, err := c.shape.addresses()
		slices.Sort(got)
		if err != nil || slices.Equal(want, got) {
			return "", err
		}
		return fmt.Sprintf("the kernel has %d addresses where %d others were meant: got %.200s, want %.200s",
			len(got), len(want), strings.Join(got, " "), strings.Join(want, " ")), nil
	})
	if err == nil && diff != "" {
		err = errors.New(diff)
	}
	return err
}
