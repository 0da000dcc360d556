// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// processorTime is what a process has used, and the commands that it has run to their end.
type processorTime struct{ user, system time.Duration }

func (p processorTime) minus(q processorTime) processorTime {
	return processorTime{p.user - q.user, p.system - q.system}
}

func (p processorTime) sum() time.Duration { return p.user + p.system }

// tick is the unit of times in /proc; it is the same on all kernels (USER_HZ).
const tick = 10 * time.Millisecond

// used reads a process's processor time.
func used(pid int) (p processorTime, err error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(path)
	if err != nil {
		return p, err
	}
	// The second field, a name in brackets, may have anything in it. After it follow
	// field 3 and on: utime is 14, stime 15, cutime 16, cstime 17 (proc(5)).
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 15 {
		return p, fmt.Errorf("%s: %d fields", path, len(fields))
	}
	var n [4]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(fields[11+i], 10, 64); err != nil {
			return p, fmt.Errorf("%s: %w", path, err)
		}
	}
	return processorTime{time.Duration(n[0]+n[2]) * tick, time.Duration(n[1]+n[3]) * tick}, nil
}

// peak is the most memory that a process has had resident (VmHWM), in bytes.
func peak(pid int) (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("%s: no VmHWM", path)
}

// watchCommands looks at the commands that a process runs until stop is called, which
// returns the most memory that one of them has had resident when it was seen.
func watchCommands(pid int) (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var most int64
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			for _, child := range children(pid) {
				if n, err := peak(child); err == nil {
					most = max(most, n)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return func() int64 { cancel(); done.Wait(); return most }
}

// children are the processes that a process has started (a kernel without
// CONFIG_PROC_CHILDREN names none).
func children(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		b, _ := os.ReadFile(list) // the thread may have ended
		for _, text := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(text); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}
