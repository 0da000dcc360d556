// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// patience is how long the demo waits for something that takes milliseconds.
const patience = 20 * time.Second

// agent is slipstream on one node. It may be started again after its end.
type agent struct {
	node *lab.Node
	proc *lab.Process
	log  *logbook // of all its processes
}

func newAgent(n *lab.Node) *agent { return &agent{node: n, log: newLogbook()} }

// clusterCIDR covers the pods of all nodes.
const clusterCIDR = "10.244.0.0/16,fd00:244::/32"

// start starts slipstream and waits until it has programmed the kernel.
func (a *agent) start(ctx context.Context, b binary, dir string) (programmed, error) {
	n := a.log.updates()
	cmd := exec.Command(b.path, "run", "--manifests", dir, "--hostname-override", a.node.Name(),
		"--cluster-cidr", clusterCIDR, "-v", "2")
	cmd.Stdout, cmd.Stderr = a.log, a.log
	var err error
	if a.proc, err = a.node.Start(cmd); err != nil {
		return programmed{}, err
	}
	return a.update(ctx, n)
}

// update waits for update n of the kernel, counted from 0 over all processes.
func (a *agent) update(ctx context.Context, n int) (programmed, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	go func() {
		select {
		case <-a.proc.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	u, ok := a.log.wait(ctx, n)
	select {
	case <-a.proc.Done():
		return u, fmt.Errorf("slipstream on %s has ended: %v", a.node.Name(), a.proc.Wait())
	default:
	}
	if !ok {
		return u, fmt.Errorf("slipstream on %s has not programmed the kernel within %v", a.node.Name(), patience)
	}
	return u, nil
}

// kill ends slipstream with SIGKILL, which leaves it no time for anything.
func (a *agent) kill() error {
	err := a.proc.Kill()
	_ = a.proc.Wait() // says that it was killed
	return err
}

// stop ends slipstream as a service manager does.
func (a *agent) stop() error {
	if err := a.proc.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-a.proc.Done():
		return a.proc.Wait()
	case <-time.After(patience):
		return fmt.Errorf("slipstream on %s goes on after SIGTERM", a.node.Name())
	}
}
