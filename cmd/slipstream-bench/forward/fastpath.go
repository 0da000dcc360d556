// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// fastPath is what makes a node's connections skip its stack: package fastpath,
// run as slipstream runs it, started anew for each setting.
type fastPath struct {
	node *lab.Node
	full func() (*desired.Change, error)

	controller *fastpath.Controller // nil while it is off
	cancel     func()
	ended      chan error // what Run returned
}

// set makes connections to Services that have carried more than threshold packets
// skip the stack; with 0 none does, and nothing of it is left in the kernel.
func (p *fastPath) set(threshold uint32) error {
	if err := p.close(); err != nil || threshold == 0 {
		return err
	}
	full, err := p.full()
	if err != nil {
		return err
	}
	c, err := fastpath.New(fastpath.Config{NetNS: p.node.Namespace().FD(), Threshold: threshold})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.controller, p.cancel, p.ended = c, cancel, make(chan error, 1)
	_, err = c.Reconcile(context.Background(), full)
	go func() { p.ended <- c.Run(ctx) }()
	return err
}

// close ends what set has started.
func (p *fastPath) close() error {
	if p.controller == nil {
		return nil
	}
	c := p.controller
	p.controller = nil
	p.cancel()
	return errors.Join(<-p.ended, c.Stop())
}

// probe says why the kernel has no fast path; nil if it has.
func (w *world) probe() error {
	c, err := fastpath.New(fastpath.Config{NetNS: w.nodes[0].Namespace().FD(), Threshold: 1})
	if err != nil {
		return err
	}
	return c.Close()
}
