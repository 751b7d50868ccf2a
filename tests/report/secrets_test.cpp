#include "report/secrets.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

namespace ballast {
namespace {

TEST(Secrets, NamesOfKeysTellWhatIsOne) {
  for (const char* name : {"wandb_api_key", "WANDB_API_KEY", "apiKey", "huggingface-token", "token",
                           "db_password", "webhook_url", "client_secret", "aws_access_key_id"}) {
    EXPECT_TRUE(is_secret_name(name)) << name;
  }
  for (const char* name : {"output_dir", "keep_checkpoints", "seed", "key", "wandb_run_name"}) {
    EXPECT_FALSE(is_secret_name(name)) << name;
  }
}

TEST(Secrets, ValuesAreHiddenAndTheRestStaysAsItIs) {
  EXPECT_EQ(hide_secrets("seed = 3\n[monitoring]\nwandb_api_key = 'abc' # mine\nname = 'x'\n"),
            "seed = 3\n[monitoring]\nwandb_api_key = \"(hidden)\" # mine\nname = 'x'\n");
  EXPECT_EQ(hide_secrets("webhook = true\nepochs = 2"), "webhook = true\nepochs = 2");
  EXPECT_EQ(hide_secrets(""), "");
}

TEST(Secrets, EveryFormOfAValueIsHidden) {
  const std::vector<const char*> forms = {
      "api_key = \"hunter2\"",
      "api_key='hunter2'",
      "\"api_key\" = 'hunter2'",
      "monitoring.api_key = 'hunter2'",
      "# api_key = 'hunter2'",
      "m = { enabled = true, api_key = 'hunter2', x = 1 }",
      "api_key = '''\nhunter2\n'''\n",
      "api_key = \"\"\"a\\\"\"\" hunter2\"\"\"",
      "api_key = [\n  'hunter2', # ]\n  \"hunter2\",\n]",
      "api_key = \"a\\\"hunter2\"",
      "api_key = hunter2",
      "password = 'it is hunter2",
      "{\"api_key\": \"hunter2\", \"seed\": 1}",
  };
  for (const char* text : forms) {
    const std::string shown = hide_secrets(text);
    EXPECT_EQ(shown.find("hunter2"), std::string::npos) << text << "\n" << shown;
    EXPECT_NE(shown.find(kHidden), std::string::npos) << text;
  }
}

// Nobody has to call a secret by its name.
TEST(Secrets, AddressesAndKeysAreHiddenWhereverTheyStand) {
  for (const char* secret :
       {"https://discord.com/api/webhooks/123/hunter2", "https://hooks.slack.com/services/T0/B0/x",
        "http://me:hunter2@host/path", "postgres://me:hunter2@host", "hf_abcdefghijklmnopqrst",
        "sk-abcdefghijklmnopqrst"}) {
    for (const char* around : {"note = '{}'", "# see {} there", "a = [\"{}\", 2]", "{}"}) {
      const std::string text = fmt::format(fmt::runtime(around), secret);
      EXPECT_EQ(hide_secrets(text), fmt::format(fmt::runtime(around), kHidden)) << text;
    }
    EXPECT_EQ(shown_command("ballast", std::vector<std::string>{"--notify", secret}),
              "ballast --notify '(hidden)'");
  }
  for (const char* open :
       {"path = 'https://huggingface.co/Wan-AI/Wan2.2'", "hf_home = '/data/hf_cache'",
        "repo = 'git@host:a/b'", "name = 'sk-short'", "at = 'http://host:80/a@b'"}) {
    EXPECT_EQ(hide_secrets(open), open);
  }
}

TEST(Secrets, CommandsHideThemToo) {
  const std::vector<std::string> arguments = {"my run.toml",     "--wandb-api-key", "hunter2",
                                              "--token=hunter2", "--seed",          "3"};
  EXPECT_EQ(shown_command("ballast train", arguments),
            "ballast train 'my run.toml' --wandb-api-key '(hidden)' '--token=(hidden)' --seed 3");
}

}  // namespace
}  // namespace ballast
