// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Command is a program to run on a machine. All paths are the host's.
type Command struct {
	// Path of the program, absolute.
	Path string
	// Args are its arguments, without the program's own name.
	Args []string
	// Dir is the working directory, absolute; empty means "/".
	Dir string
	// Env is the whole environment as NAME=value. PATH and HOME are added when they
	// are absent; TMPDIR always names a tmpfs of the machine.
	Env []string
}

// Result is how a command ended.
type Result struct {
	// ExitCode is the command's own, or 128 plus the number of the signal that ended it.
	ExitCode int
	// Failure says why the command could not be started, or is empty.
	Failure string
}

// jobVariable is on the kernel's command line, which makes it part of the environment
// of process 1. It names the job's directory.
const jobVariable = "SLIPSTREAM_UML_JOB"

// Names in the directory of a job.
const (
	initFile   = "init"        // symbolic link to the binary that is process 1
	jobFile    = "job.json"    // a Command, written by the host
	resultFile = "result.json" // a Result, written by process 1
)

// checkVisible returns an error if a machine cannot reach a path of the host, because it
// has mounts of its own above. what names the path in the error.
func checkVisible(what, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s %q is not an absolute path", what, path)
	}
	clean := filepath.Clean(path)
	if resolved, err := filepath.EvalSymlinks(clean); err == nil {
		clean = resolved
	}
	for _, dir := range []string{"/dev", "/proc", "/run", "/sys", "/var/run"} {
		if clean == dir || strings.HasPrefix(clean, dir+"/") {
			return fmt.Errorf("%s %q is below %s, where the machine has a mount of its own; use another place (see TMPDIR)", what, path, dir)
		}
	}
	return nil
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
