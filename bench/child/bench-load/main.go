// SPDX-License-Identifier: Apache-2.0

// Command bench-load makes HTTP requests at a constant rate by the library of fortio and prints fortio's
// result as JSON.
//
//	bench-load URL REQUESTS-PER-SECOND DURATION CONNECTIONS keepalive|close
//
// With keepalive, a connection carries 100 requests. Every request has its place in time, however
// long others take.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"fortio.org/fortio/fhttp"
	"fortio.org/log"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench-load:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("%d arguments, want 5", len(args))
	}
	log.SetLogLevelQuiet(log.Error)
	rate, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return err
	}
	duration, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	connections, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	o := fhttp.HTTPRunnerOptions{AllowInitialErrors: true}
	o.Init(args[0])
	o.DisableKeepAlive = args[4] == "close"
	o.ConnReuseRange = [2]int{100, 100} // requests before a new connection
	o.HTTPReqTimeOut = 3 * time.Second
	o.QPS, o.Duration, o.NumThreads = rate, duration, connections
	o.RunnerOptions.Resolution = 0.000005 // seconds
	o.Percentiles = []float64{50, 99, 99.9}
	o.Out = os.Stderr
	o.NumConnections = connections
	result, err := fhttp.RunHTTPTest(&o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
