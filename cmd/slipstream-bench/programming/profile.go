// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
)

// profiler writes profiles to a directory; to none when that is empty.
type profiler struct {
	dir   string
	count map[string]int
}

// cpu profiles one step, until stop. Repeated steps get files of their own,
// which "go tool pprof" adds up.
func (p *profiler) cpu(step string) (stop func() error, err error) {
	if p.dir == "" {
		return func() error { return nil }, nil
	}
	if p.count == nil {
		p.count = map[string]int{}
	}
	p.count[step]++
	f, err := os.Create(filepath.Join(p.dir, fmt.Sprintf("%s-%d.cpu.pprof", step, p.count[step])))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// heap profiles what is reachable now.
func (p *profiler) heap() error {
	if p.dir == "" {
		return nil
	}
	f, err := os.Create(filepath.Join(p.dir, "heap.pprof"))
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("heap").WriteTo(f, 0), f.Close())
}
