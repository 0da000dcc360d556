// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the processor time, user and system, that this process has used, and
// commands that it has run. What the kernel does later on its own threads is not in it.
func cpuTime() (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return 0
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// resetPeak makes the kernel count the peak of memory (VmHWM) from here.
func resetPeak() error {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return fmt.Errorf("resetting the peak of memory: %w", err)
	}
	return nil
}

// peak is the most memory that this process has had resident since resetPeak,
// in bytes.
func peak() (int64, error) {
	all, err := procStatus("/proc/self/status")
	return all["VmHWM"], err
}

// Rest is what a process has resident when all that it does not need has been
// given back, in bytes.
type Rest struct {
	Resident  int64 `json:"rss_bytes"`
	Anonymous int64 `json:"rss_anon_bytes"` // of it: heap, stacks, the runtime's tables
	File      int64 `json:"rss_file_bytes"` // of it: the binary, which the kernel can drop
	Heap      int64 `json:"heap_bytes"`     // reachable objects
}

// rest gives back what memory can be and measures.
func rest() (Rest, error) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	all, err := procStatus("/proc/self/status")
	return Rest{all["VmRSS"], all["RssAnon"], all["RssFile"], int64(m.HeapAlloc)}, err
}

// procStatus reads the sizes in a process's status, in bytes.
func procStatus(path string) (map[string]int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string]int64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if value, ok := strings.CutSuffix(value, " kB"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", path, name, err)
			}
			all[name] = n << 10
		}
	}
	return all, lines.Err()
}
