// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// pipes are a connection over two pipes.
type pipes struct {
	io.ReadCloser
	io.WriteCloser
}

func (p pipes) Read(b []byte) (int, error)  { return p.ReadCloser.Read(b) }
func (p pipes) Write(b []byte) (int, error) { return p.WriteCloser.Write(b) }
func (p pipes) Close() error                { return errors.Join(p.ReadCloser.Close(), p.WriteCloser.Close()) }

// RunChild is the whole work of the process that [Sync] starts: it serves calls of
// [Slipstream]'s methods (JSON-RPC) until in ends.
func RunChild(in io.ReadCloser, out io.WriteCloser) error {
	s := &Slipstream{}
	server := rpc.NewServer()
	if err := server.RegisterName("Slipstream", s); err != nil {
		return err
	}
	server.ServeCodec(jsonrpc.NewServerCodec(pipes{in, out}))
	return s.close()
}

// child is a process with a Slipstream, in a network namespace of its own.
type child struct {
	client    *rpc.Client
	process   *lab.Process
	namespace *lab.Namespace
}

// startChild starts a child. It ends with ctx, with this process, or when it is closed.
func startChild(ctx context.Context, command []string, o *Options) (c *child, err error) {
	c = &child{}
	if c.namespace, err = lab.NewNamespace(); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, c.namespace.Close())
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, c.namespace.Close())
	}
	if c.process, err = c.namespace.Start(cmd); err != nil {
		return nil, errors.Join(err, c.namespace.Close())
	}
	c.client = jsonrpc.NewClient(pipes{out, in})
	if err := c.client.Call("Slipstream.Open", o, &struct{}{}); err != nil {
		return nil, errors.Join(fmt.Errorf("slipstream: Open: %w", err), c.close())
	}
	return c, nil
}

// call has the child measure a step, and adds what it measured.
func (c *child) call(step string, n int, all bench.Samples) error {
	more := bench.Samples{}
	if err := c.client.Call("Slipstream."+step, n, &more); err != nil {
		return fmt.Errorf("slipstream: %s: %w", step, err)
	}
	all.Merge(more)
	return nil
}

func (c *child) close() error {
	err := c.client.Close()
	if errors.Is(err, rpc.ErrShutdown) || errors.Is(err, os.ErrClosed) {
		err = nil // the child has ended before
	}
	if end := c.process.Wait(); end != nil {
		err = errors.Join(err, fmt.Errorf("slipstream: the process ended with %w", end))
	}
	return errors.Join(err, c.namespace.Close())
}
