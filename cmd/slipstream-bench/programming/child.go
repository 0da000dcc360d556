// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// A child process measures one system. Its parent sends requests, one JSON
// value each, to its standard input, and reads a reply for each from its
// standard output. The child ends when its input does.

// The systems that a child can measure.
const (
	systemSlipstream = "slipstream"
	systemChains     = "chains"
)

// The steps of a request. The first is stepOpen, with the options.
const (
	stepOpen      = "open"
	stepCold      = "cold"      // programs everything
	stepSplit     = "split"     // of the baseline: programs everything in parts
	stepRestart   = "restart"   // and again, as a new process would
	stepReplace   = "replace"   // one endpoint replaced
	stepEndpoints = "endpoints" // one endpoint removed, one added
	stepServices  = "services"  // one Service removed, one added
	stepBurst     = "burst"     // many changes at once
	stepMemory    = "memory"
	stepVerify    = "verify"
)

// request is one step to take.
type request struct {
	Step        string
	System      string       `json:",omitempty"` // of stepOpen
	Options     *SyncOptions `json:",omitempty"` // of stepOpen
	Repetitions int          `json:",omitempty"`
	Limit       time.Duration
}

// reply is what came of a step.
type reply struct {
	Error   string              `json:",omitempty"`
	Program *Programming        `json:",omitempty"`
	Load    *Load               `json:",omitempty"`
	Memory  *Memory             `json:",omitempty"`
	Series  map[string]*samples `json:",omitempty"`
	Elapsed time.Duration       `json:",omitempty"`
	// Unavailable says why there is no such system here, which is no error.
	Unavailable string `json:",omitempty"`
}

// system is what is measured.
type system interface {
	do(request) (reply, error)
	close() error
}

// RunChild is the child: it takes requests from in and replies to out until in
// ends. It is the whole work of the process that [Command] starts.
func RunChild(in io.Reader, out io.Writer) (err error) {
	var s system
	defer func() {
		if s != nil {
			err = errors.Join(err, s.close())
		}
	}()
	requests, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q request
		if err := requests.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("request: %w", err)
		}
		var r reply
		var err error
		switch {
		case q.Step == stepOpen && s == nil:
			s, r, err = open(q)
		case s == nil:
			err = errors.New("no system is open")
		default:
			start := time.Now()
			r, err = s.do(q)
			r.Elapsed = time.Since(start)
		}
		if err != nil {
			r = reply{Error: err.Error()}
		}
		if err := replies.Encode(r); err != nil {
			return fmt.Errorf("reply: %w", err)
		}
	}
}

func open(q request) (system, reply, error) {
	if q.Options == nil {
		return nil, reply{}, errors.New("no options")
	}
	switch q.System {
	case systemSlipstream:
		s, err := newSlipstream(q.Options)
		if err != nil {
			return nil, reply{}, err
		}
		return s, reply{}, nil
	case systemChains:
		s, err := newChains(q.Options)
		if err != nil {
			return nil, reply{Unavailable: err.Error()}, nil
		}
		return s, reply{}, nil
	}
	return nil, reply{}, fmt.Errorf("no system %q", q.System)
}
