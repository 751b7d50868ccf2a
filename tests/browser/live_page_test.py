#!/usr/bin/env python3
"""The live page in a real browser, of a run that trains beside it.

    live_page_test.py PROGRAM SCREENSHOTS
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from prometheus_client.parser import text_string_to_metric_families
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

PROGRAM, SCREENSHOTS = sys.argv[1], pathlib.Path(sys.argv[2])
ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "examples/demo_model/model"
TITLE = "tiny </script><b>"


def wait_for(what, condition, seconds=60):
    """Its value, once there is one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what}")


def step(number, seconds=1.0):
    return {
        "kind": "step", "time": time.time(), "step": number, "epoch": 1, "loss": 2 / (number + 3),
        "lr": 1e-4, "grad_norm": 0.5, "seconds": seconds,
        "times": {"compute": 0.7, "upload": 0.2, "disk": 0.1, "waiting": 0.2, "data": 0.02, "save": 0},
        "memory": {"planned": {"device": 700, "host": 100, "disk": 0, "ram": 900},
                   "measured": {"device": 690, "host": 100, "disk": 0, "ram": 880 + number % 9}},
        "samples": ["a"], "t": [0.5],
    }


class Run:
    """A run's folder whose log the test writes."""

    def __init__(self, folder, steps):
        self.log = pathlib.Path(folder) / "run_log.jsonl"
        info = {"title": TITLE, "command": "ballast train x.toml", "started": "now", "total_steps": 600,
                "summary": [["dataset", "12 clips"]], "environment": [["version", "0"]],
                "planned": {}, "allowed": {}, "plan": [], "config": "a = 1", "notes": ["a note"]}
        self.write({"kind": "run", "time": time.time(), "step": 0, "info": info},
                   *(step(n) for n in range(1, steps + 1)))

    def write(self, *records):
        with open(self.log, "a", encoding="utf-8") as out:
            out.write("".join(json.dumps(r) + "\n" for r in records))


class Watch:
    """`ballast watch`, as long as the test lasts."""

    def __init__(self, folder, *flags):
        self.process = subprocess.Popen([PROGRAM, "watch", str(folder), "--port", "0", *flags],
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"live page: (http://127.0.0.1:(\d+)/\?token=([0-9a-f]{32}))\n", line)
        if not found:
            raise AssertionError(f"no address: {line!r}")
        self.address, self.port, self.token = found[1], int(found[2]), found[3]

    def get(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body.decode()

    def ok(self, path):
        answer, body = self.get(path, Cookie=f"ballast_{self.port}={self.token}")
        assert answer.status == 200, (path, answer.status, body)
        return body

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.process.stdout.close()
        return code


def browser(width=1600, height=1000, dark=False):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    # Narrower than the least window there is.
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    return driver


def requests_of(driver):
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            yield message["params"]["request"]["url"]


class LivePage(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def watch(self, folder, *flags):
        watch = Watch(folder, *flags)
        self.addCleanup(lambda: watch.process.poll() is None and watch.stop())
        return watch

    def open(self, watch, **how):
        driver = browser(**how)
        self.addCleanup(driver.quit)
        driver.get(watch.address)
        wait_for("the page", lambda: driver.find_element(By.ID, "main").is_displayed())
        return driver

    def check_is_clean(self, driver, watch):
        messages = [m for m in driver.get_log("browser") if m["level"] != "DEBUG"]
        self.assertEqual(messages, [])
        for url in requests_of(driver):
            self.assertTrue(url.startswith((f"http://127.0.0.1:{watch.port}/", "data:", "blob:")), url)

    def test_new_steps_show_within_a_second(self):
        run = Run(self.folder.name, 50)
        watch = self.watch(self.folder.name)
        driver = self.open(watch)
        self.assertEqual(driver.find_element(By.ID, "title").text, TITLE)
        self.assertNotIn("token", driver.current_url)
        read = lambda: driver.find_element(By.CSS_SELECTOR, "#loss-chart .read").text
        wait_for("step 50", lambda: "step 50 " in read())
        body = driver.find_element(By.TAG_NAME, "body")
        wait_for("the stream", lambda: body.get_attribute("data-connected") == "true")
        for n in (51, 52, 53):
            begin = time.monotonic()
            run.write(step(n))
            wait_for(f"step {n}", lambda: f"step {n} " in read(), 10)
            self.assertLess(time.monotonic() - begin, 1)
        self.check_is_clean(driver, watch)
        self.assertEqual(watch.stop(), 0)

    def test_nothing_foreign_runs_in_it(self):
        Run(self.folder.name, 3)
        watch = self.watch(self.folder.name)
        driver = self.open(watch)
        driver.execute_script(
            "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
            "document.body.append(s);"
            "const i = new Image(); i.src = 'http://127.0.0.2:9/x.png'; document.body.append(i);")
        self.assertIsNone(driver.execute_script("return window.ran || null"))
        refused = wait_for("the policy's messages", lambda: len(
            [m for m in driver.get_log("browser") if "Content Security Policy" in m["message"]]) or None)
        self.assertGreaterEqual(refused, 1)

    def test_can_be_used_from_the_keyboard(self):
        Run(self.folder.name, 40)
        driver = self.open(self.watch(self.folder.name))
        chart = driver.find_element(By.CSS_SELECTOR, "#loss-chart .chart > canvas")
        read = lambda: driver.find_element(By.CSS_SELECTOR, "#loss-chart .read").text
        wait_for("the last step", lambda: read().startswith("step 40 "))
        self.assertIn("Loss", chart.get_attribute("aria-label"))
        reached = set()
        for _ in range(40):
            driver.switch_to.active_element.send_keys(Keys.TAB)
            reached.add(driver.execute_script(
                "const e = document.activeElement; return e.id || e.tagName + ' ' + e.parentElement?.parentElement?.id"))
        for wanted in ("by-time", "smoothing", "CANVAS loss-chart", "events"):
            self.assertIn(wanted, reached)
        chart.send_keys(Keys.HOME)
        wait_for("the first step", lambda: read().startswith("step 1 "))
        chart.send_keys("+")
        chart.send_keys(Keys.ESCAPE)
        driver.find_element(By.CSS_SELECTOR, "#loss-chart summary").click()
        rows = wait_for("the table", lambda: driver.find_elements(By.CSS_SELECTOR, "#loss-chart tbody tr"))
        self.assertEqual(len(rows), 40)

    def test_fits_narrow_and_wide_screens_in_light_and_dark(self):
        Run(self.folder.name, 300)
        watch = self.watch(self.folder.name)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for width in (320, 400, 1600):
            for dark in (False, True):
                driver = self.open(watch, width=width, height=3000, dark=dark)
                wait_for("charts", lambda: "step 300 " in driver.find_element(
                    By.CSS_SELECTOR, "#loss-chart .read").text)
                self.assertLessEqual(
                    driver.execute_script("return document.documentElement.scrollWidth"), width)
                driver.save_screenshot(str(SCREENSHOTS / f"{width}_{'dark' if dark else 'light'}.png"))
                self.check_is_clean(driver, watch)
                driver.quit()

    def test_server_keeps_to_its_rules(self):
        Run(self.folder.name, 3)
        watch = self.watch(self.folder.name)
        cookie = f"ballast_{watch.port}={watch.token}"
        self.assertEqual(watch.get("/")[0].status, 403)
        self.assertEqual(watch.get("/", Cookie=cookie, Host="evil.example")[0].status, 421)
        self.assertEqual(watch.get("/", "POST", Cookie=cookie)[0].status, 405)
        self.assertEqual(watch.get("/", "HEAD", Cookie=cookie)[0].status, 200)
        self.assertEqual(watch.get("/" + "x" * 40000, Cookie=cookie)[0].status // 100, 4)
        answer, _ = watch.get(f"/?token={watch.token}")
        self.assertEqual(answer.status, 303)
        self.assertIn("HttpOnly; SameSite=Strict", answer.getheader("Set-Cookie"))
        answer, text = watch.get("/metrics", Authorization=f"Bearer {watch.token}")
        names = {f.name for f in text_string_to_metric_families(text)}
        self.assertIn("ballast_loss_smoothed", names)
        # No more than eight of one address.
        held = [socket.create_connection(("127.0.0.1", watch.port), timeout=60) for _ in range(20)]
        closed = [c for c in held[8:] if c.recv(1) == b""]
        self.assertEqual(len(closed), 12)
        for c in held:
            c.close()
        status = pathlib.Path(f"/proc/{watch.process.pid}/status").read_text()
        self.assertIn("NoNewPrivs:\t1", status)

    def test_head_that_does_not_end_is_cut_off(self):
        Run(self.folder.name, 1)
        watch = self.watch(self.folder.name)
        with socket.create_connection(("127.0.0.1", watch.port), timeout=60) as s:
            s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            begin = time.monotonic()
            self.assertEqual(s.recv(100), b"")
            self.assertLess(time.monotonic() - begin, 30)

    def test_holds_little_memory_with_many_steps(self):
        run = Run(self.folder.name, 0)
        with open(run.log, "a", encoding="utf-8") as out:
            for n in range(1, 200_001):
                out.write(json.dumps(step(n)) + "\n")
        watch = self.watch(self.folder.name)
        answer = json.loads(watch.ok("/api/run"))
        self.assertLessEqual(len(answer["steps"]), 4096)
        self.assertEqual(answer["steps"][-1][1], 200_000)
        status = pathlib.Path(f"/proc/{watch.process.pid}/status").read_text()
        held = int(re.search(r"RssAnon:\s+(\d+) kB", status)[1])
        print(f"\nRssAnon with 200,000 steps: {held} kB")
        self.assertLess(held, 4096)


def make_data(folder):
    """What the demo trains on, in folder."""
    for name in ("lora.toml", "new_clips.toml", "held_out_clips.toml", "prompts.txt"):
        shutil.copy(ROOT / "examples/demo_model" / name, folder)
    shutil.copytree(MODEL, pathlib.Path(folder) / "model")
    tool = pathlib.Path(PROGRAM).parent / "demo_model"
    for clips in (["clips", "new", "clips/new"],
                  ["clips", "new", "clips/held_out", "--seed", "2", "--repeats", "1"]):
        subprocess.run([tool, *clips], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([PROGRAM, "cache", "lora.toml", "--gpu", "16MB"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class WatchedTraining(unittest.TestCase):
    """The demo's model trains, with and without its page."""

    def train(self, folder, *flags):
        """Starts a training of a few steps into folder."""
        return subprocess.Popen(
            [PROGRAM, "train", "lora.toml", "--gpu", "60MB", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, "XDG_STATE_HOME": str(folder)})

    def run_of(self, folder):
        found = sorted((pathlib.Path(folder) / "runs/lora").glob("2*_*"))
        return found[-1] if found else None

    def test_page_changes_no_byte(self):
        results = []
        for flags in (("--max_steps", "20"), ("--max_steps", "20", "--serve", ":0")):
            with tempfile.TemporaryDirectory() as folder:
                make_data(folder)
                process = self.train(folder, *flags)
                text = process.stderr.read()
                self.assertEqual(process.wait(600), 0, text)
                process.stderr.close()
                run = self.run_of(folder)
                saved = sorted(run.glob("*/adapter_model.safetensors"))
                results.append([p.read_bytes() for p in saved])
                self.assertTrue(saved)
                self.assertIn('"map"', (run / "plan.json").read_text())
                self.assertEqual("live page: http://127.0.0.1:" in text, "--serve" in flags)
        self.assertEqual(results[0], results[1])

    def test_killed_run_is_dead_within_five_seconds(self):
        with tempfile.TemporaryDirectory() as folder:
            make_data(folder)
            endless = pathlib.Path(folder) / "lora.toml"
            endless.write_text(endless.read_text().replace("epochs = 20", "epochs = 100000"))
            process = self.train(folder)
            run = wait_for("a step", lambda: self.run_of(folder) and '"step":3,' in (
                (self.run_of(folder) / "run_log.jsonl").read_text()
                if (self.run_of(folder) / "run_log.jsonl").exists() else "") and self.run_of(folder), 120)
            watch = Watch(run)
            driver = browser()
            try:
                driver.get(watch.address)
                state = lambda: driver.find_element(By.ID, "state").text
                wait_for("training", lambda: state().startswith("training, step "))
                process.kill()
                process.wait()
                begin = time.monotonic()
                wait_for("dead", lambda: state().startswith("dead since "), 20)
                self.assertLess(time.monotonic() - begin, 5)
                self.assertIn("the process was", state())
                SCREENSHOTS.mkdir(parents=True, exist_ok=True)
                driver.save_screenshot(str(SCREENSHOTS / "dead.png"))
            finally:
                driver.quit()
                watch.stop()
                process.stderr.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
