// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/slipstream-proxy/slipstream/test/process"
)

// Process is a child process that runs in a namespace.
type Process = process.Process

// Start starts cmd in the namespace, as process.Start does. The process ends with the
// namespace.
//
// Only network namespaces are separate: files, /sys and process ids are the
// machine's. Processes that cmd starts outside its process group are not known
// here and outlive a kill -9 of this process.
func (n *Namespace) Start(cmd *exec.Cmd) (*Process, error) {
	cmd.WaitDelay = cmp.Or(cmd.WaitDelay, 2*time.Second) // do not wait for pipes held by others
	p, err := process.Start(cmd, n.Do)
	if err != nil {
		return nil, n.wrap(fmt.Errorf("start %s: %w", cmd.Path, err))
	}
	if err := n.track(p, false); err != nil {
		_ = p.Close()
		return nil, n.wrap(fmt.Errorf("start %s: %w", cmd.Path, err))
	}
	go func() {
		<-p.Done()
		n.untrack(p)
	}()
	return p, nil
}

// Run runs a program in the namespace to its end and returns its standard
// output; the error holds its standard error.
func (n *Namespace) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	p, err := n.Start(cmd)
	if err != nil {
		return nil, err
	}
	if err := p.Wait(); err != nil {
		return stdout.Bytes(), n.wrap(fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(stderr.Bytes())))
	}
	return stdout.Bytes(), nil
}
