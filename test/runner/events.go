// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// event is one line of go tool test2json.
type event struct {
	Action string
	Test   string // empty for events of the package
	Output string
}

// eventStream turns the output of a test binary, written to it, into events.
type eventStream struct {
	io.Writer
	input *os.File
	cmd   *exec.Cmd
	done  chan error // one value, when all events have been delivered
}

// startEvents starts test2json. Events go to deliver, which is called by one goroutine.
func startEvents(test2json, pkg string, deliver func(event)) (*eventStream, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	cmd := exec.Command(test2json, "-p", pkg)
	cmd.Stdin, cmd.Stderr = read, os.Stderr
	output, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		write.Close()
		return nil, fmt.Errorf("test2json: %w", err)
	}
	s := &eventStream{Writer: write, input: write, cmd: cmd, done: make(chan error, 1)}
	go func() {
		err := readEvents(output, deliver)
		_, _ = io.Copy(io.Discard, output)
		s.done <- err
	}()
	return s, nil
}

// Close ends the stream, after all events of it have been delivered.
func (s *eventStream) Close() error {
	s.input.Close()
	err := <-s.done
	if err = errors.Join(err, s.cmd.Wait()); err != nil {
		return fmt.Errorf("test2json: %w", err)
	}
	return nil
}

func readEvents(r io.Reader, deliver func(event)) error {
	for decoder := json.NewDecoder(r); ; {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		deliver(e)
	}
}
