// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// step is a benchmark in a full or a short run: a command that writes its result as JSON to the file that its last
// argument names.
type step struct {
	name, command string
	minutes       float64
}

// in returns the steps of a full or a short run.
func (p *part) in(fast bool) (all []step) {
	for _, s := range p.Steps {
		command, minutes := s.Full, s.Minutes.Full
		if fast {
			command, minutes = s.Fast, s.Minutes.Fast
		}
		if command != "" {
			all = append(all, step{s.Name, command + " --save " + s.Name + ".json", minutes})
		}
	}
	return all
}

// record is what was measured of a part: the content of its file.
type record struct {
	Part  string    `json:"part"`
	Steps []*result `json:"steps"`
}

// result is what a step has measured.
type result struct {
	Name    string    `json:"name"`
	Command string    `json:"command"`
	Version string    `json:"version"` // of Slipstream
	Fast    bool      `json:"fast"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	// Of the machine, also where the step ran in a virtual machine.
	Machine    bench.Machine `json:"machine"`
	Memory     uint64        `json:"memory_bytes"`
	LoadBefore string        `json:"load_average_before"`
	LoadAfter  string        `json:"load_average_after"`
	// Elsewhere is how many processors other work used meanwhile, on average.
	Elsewhere float64       `json:"processors_used_elsewhere"`
	Failed    string        `json:"failed,omitempty"`
	Result    *bench.Result `json:"result"`
}

// Disturbed says whether other work ran on the machine: it may use 0.15 processors before a step's numbers are marked.
func (r *result) Disturbed() bool { return r.Elsewhere > 0.15 }

func (r *record) find(name string) *result {
	for _, s := range r.Steps {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// put adds a result in the place of the one of its name.
func (r *record) put(s *result) {
	r.Steps = slices.DeleteFunc(r.Steps, func(old *result) bool { return old.Name == s.Name })
	r.Steps = append(r.Steps, s)
}

func (r *record) save(data string) error {
	b, err := json.MarshalIndent(r, "", "") // a number a line, without what indents thousands of them
	if err != nil {
		return err
	}
	path := filepath.Join(data, r.Part+".json")
	part := path + ".part" // an interrupted run leaves the old file whole
	return errors.Join(os.WriteFile(part, append(b, '\n'), 0o644), os.Rename(part, path))
}

// load reads the records of all parts.
func load(data string) (map[string]*record, error) {
	all := map[string]*record{}
	for _, p := range parts {
		b, err := os.ReadFile(filepath.Join(data, p.Name+".json"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		r := &record{}
		if err == nil {
			err = json.Unmarshal(b, r)
		}
		if err != nil {
			return nil, fmt.Errorf("%s.json: %w", p.Name, err)
		}
		all[p.Name] = r
	}
	return all, nil
}

// run runs the step. Its output goes to a file beside the part's.
func (s step) run(ctx context.Context, data, part string) *result {
	var i unix.Sysinfo_t
	_ = unix.Sysinfo(&i) // it cannot fail
	r := &result{Name: s.name, Command: s.command, Began: time.Now().Truncate(time.Second), Machine: bench.ThisMachine(), Memory: i.Totalram * uint64(i.Unit)}
	// The benchmarks wait for calm themselves, too.
	bench.Quiet(ctx)
	r.LoadBefore = bench.LoadAverage()
	elsewhere, begin := watchOthers(), time.Now()
	err := func() error {
		saved, err := filepath.Abs(filepath.Join(data, fmt.Sprintf("%s-%s.tmp", part, s.name)))
		if err != nil {
			return err
		}
		defer os.Remove(saved)
		logFile := filepath.Join(data, fmt.Sprintf("%s-%s.log", part, s.name))
		log, err := os.Create(logFile)
		if err != nil {
			return err
		}
		defer log.Close()
		args := strings.Fields(s.command)
		args[len(args)-1] = saved
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = log, log
		// It removes its namespaces when it is asked to end.
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = time.Minute
		err = cmd.Run()
		if err != nil {
			text, _ := os.ReadFile(logFile)
			err = fmt.Errorf("%w: %s", err, lab.Tail(string(text), 3))
		}
		b, missing := os.ReadFile(saved)
		if missing != nil {
			return cmp.Or(err, missing)
		}
		return errors.Join(err, json.Unmarshal(b, &r.Result))
	}()
	r.Seconds = time.Since(begin).Seconds()
	r.Elsewhere = elsewhere() / r.Seconds
	r.LoadAfter = bench.LoadAverage()
	if err != nil {
		r.Failed = err.Error()
	}
	return r
}
