// SPDX-License-Identifier: Apache-2.0

// Command run runs one command on a User Mode Linux test kernel and exits with the
// command's exit code, or with 125 when there is no result.
//
//	go run ./test/kernel/run [flags] command [argument...]
//
// It is started in the repository's root. The kernel is the one that SLIPSTREAM_TESTKERNEL
// names (with -kernel 6.1 SLIPSTREAM_TESTKERNEL_6_1), or else the one that
// test/kernel/build.sh has cached. The command sees the host's files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
)

// noResult is the exit code when the machine failed, not the command.
const noResult = 125

func main() {
	uml.Init()
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func run() (int, error) {
	timeout := flag.Duration("timeout", 10*time.Minute, "kill the machine after this time")
	memory := flag.String("memory", "", "the machine's memory, as in the kernel's option mem= (default 2G)")
	version := flag.String("kernel", uml.Versions[0], "Linux version: "+strings.Join(uml.Versions, " or "))
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: run [flags] command [argument...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		return noResult, nil
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()

	kernel, err1 := uml.Find(ctx, "test/kernel/build.sh", *version)
	path, err2 := exec.LookPath(flag.Arg(0))
	dir, err3 := os.Getwd()
	if err := errors.Join(err1, err2, err3); err != nil {
		return noResult, err
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	code, err := uml.Machine{Kernel: kernel, Memory: *memory}.Run(ctx, uml.Command{Path: path, Args: flag.Args()[1:], Dir: dir, Env: os.Environ()}, os.Stdout)
	if err != nil {
		return noResult, err
	}
	return code, nil
}
