// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// patience bounds what takes a moment, on a machine that does other things too.
const patience = 30 * time.Second

// streamServer starts iperf3 in the server's pod and waits until it listens.
func (w *world) streamServer(ctx context.Context) (*lab.Process, error) {
	at := w.backend(streamPort)
	cmd := exec.CommandContext(ctx, "iperf3", "--server", "--bind", at.Addr().String(), "--port", strconv.Itoa(int(at.Port())), "--forceflush")
	output, theirs := io.Pipe()
	cmd.Stdout, cmd.Stderr = theirs, theirs
	listens := make(chan string, 1)
	go func() {
		var said []string
		for lines := bufio.NewScanner(output); lines.Scan(); {
			said = append(said, lines.Text())
			if strings.HasPrefix(lines.Text(), "Server listening") {
				listens <- ""
				break
			}
		}
		select {
		case listens <- strings.Join(said, "; "):
		default:
		}
		_, _ = io.Copy(io.Discard, output)
	}()
	p, err := w.server.Start(cmd)
	if err != nil {
		return nil, err
	}
	go func() { <-p.Done(); theirs.Close() }()
	select {
	case problem := <-listens:
		if problem == "" {
			return p, nil
		}
		err = errors.New(problem)
	case <-p.Done():
		err = p.Wait()
	case <-time.After(patience):
		err = errors.New("does not listen")
	}
	return nil, errors.Join(fmt.Errorf("iperf3 server: %w", err), p.Kill())
}

// streamed is how fast a stream was, in bit/s.
type streamed struct {
	rate float64 // as it arrived, over the whole time
	best float64 // as it was sent, in the best tenth of a second
}

// errNotReady says that the server does not take a stream yet: between two, iperf3
// stops listening for a moment.
var errNotReady = errors.New("iperf3: the server is not ready")

// stream sends over one TCP connection to the Service for some seconds.
func (w *world) stream(ctx context.Context, seconds int) (s streamed, err error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		s, err = w.tryStream(ctx, seconds)
		if !errors.Is(err, errNotReady) || time.Now().After(deadline) {
			return s, err
		}
	}
}

func (w *world) tryStream(ctx context.Context, seconds int) (streamed, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+patience)
	defer cancel()
	to := w.frontend(streamPort)
	out, err := w.client.Run(ctx, "iperf3", "--json", "--client", to.Addr().String(), "--port", strconv.Itoa(int(to.Port())),
		"--time", strconv.Itoa(seconds), "--interval", "0.1")
	return parseStream(out, err)
}

// rate is a part of a report of iperf3.
type rate struct {
	BitsPerSecond float64 `json:"bits_per_second"`
}

// parseStream reads a report of iperf3, which has its errors in it too.
func parseStream(report []byte, end error) (s streamed, err error) {
	var r struct {
		Error     string `json:"error"`
		Intervals []struct {
			Sum rate `json:"sum"`
		} `json:"intervals"`
		End struct {
			Received rate `json:"sum_received"`
		} `json:"end"`
	}
	err = json.Unmarshal(report, &r)
	switch {
	case err == nil && (strings.HasPrefix(r.Error, "unable to connect to server") || strings.Contains(r.Error, "server is busy")):
		return s, fmt.Errorf("%w: %s", errNotReady, r.Error)
	case err == nil && r.Error != "":
		return s, fmt.Errorf("iperf3: %s", r.Error)
	case end != nil:
		return s, end
	case err != nil:
		return s, fmt.Errorf("iperf3: report: %w", err)
	case r.End.Received.BitsPerSecond <= 0 || len(r.Intervals) == 0:
		return s, errors.New("iperf3: report: nothing was received")
	}
	s.rate = r.End.Received.BitsPerSecond
	for _, i := range r.Intervals {
		s.best = max(s.best, i.Sum.BitsPerSecond)
	}
	return s, nil
}
